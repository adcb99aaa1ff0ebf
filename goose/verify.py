"""The walk down a tree: from the anchor to the child that equals the target's draw, until no child does.

One draw a node of the path, taken from the target's own distribution at that node and independent of the tree, which
is why the output is distributed exactly as without drafts. Greedy and sampled verification differ in `draw` alone.
Plain numpy: whatever holds the logits (a torch tensor on any device) stays behind the caller's `draw`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from goose.tree import IntArray, TokenTree

__all__ = ["BatchDraw", "Draw", "VerifiedPath", "walk", "walk_batch"]

# The target's token after a node of the tree.
Draw = Callable[[int], int]
# [num_walking] tree numbers (ascending), [num_walking] nodes in those trees -> [num_walking] tokens.
BatchDraw = Callable[[IntArray, IntArray], IntArray]


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedPath:
    """The outcome of the walk down one tree.

    `token_ids` is the target's choice at the anchor and at each accepted node: the accepted tokens, then the bonus
    token. Its length is one more than that of `accepted_nodes`.
    """

    # [num_accepted] int64: node indices, anchor excluded, parent before child
    accepted_nodes: IntArray
    # [num_accepted + 1] int64
    token_ids: IntArray


def walk(tree: TokenTree, draw: Draw) -> VerifiedPath:
    """Calls `draw` once for each node on the path. Of children with the same token the first is followed."""
    node = 0
    accepted: list[int] = []
    drawn: list[int] = []
    while True:
        # The target draws its own token after this node, whatever the tree holds.
        drawn.append(draw(node))
        # If a child holds that token it is accepted, and the walk goes on from there;
        children = np.flatnonzero((tree.parents == node) & (tree.token_ids == drawn[-1]))
        # else the draw is the bonus token.
        if not len(children):
            return VerifiedPath(np.asarray(accepted, dtype=np.int64), np.asarray(drawn, dtype=np.int64))
        node = int(children[0])
        accepted.append(node)


def walk_batch(trees: Sequence[TokenTree], draw: BatchDraw) -> list[VerifiedPath]:
    """`walk` for all trees together, one call of `draw` a level for the sequences that are still walking."""
    if not trees:
        return []
    num_trees = len(trees)
    sizes = np.asarray([tree.num_nodes for tree in trees], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    # Flattened over the batch: a level costs a handful of array operations however many trees there are.
    tree_of = np.repeat(np.arange(num_trees), sizes)
    token_ids = np.concatenate([tree.token_ids for tree in trees])
    parents = np.concatenate([tree.parents for tree in trees])

    accepted: list[list[int]] = [[] for _ in trees]
    drawn: list[list[int]] = [[] for _ in trees]
    at = np.zeros(num_trees, dtype=np.int64)
    wanted = np.empty(num_trees, dtype=np.int64)
    walking = np.arange(num_trees)
    while len(walking):
        tokens = np.asarray(draw(walking, at[walking]), dtype=np.int64)
        if tokens.shape != walking.shape:
            raise ValueError(f"draw gave tokens of shape {tokens.shape} for {len(walking)} sequences")
        for tree, token in zip(walking.tolist(), tokens.tolist(), strict=True):
            drawn[tree].append(token)
        # A tree that has stopped keeps its node and its token, and so stays without a hit.
        wanted[walking] = tokens
        hits = np.flatnonzero((parents == at[tree_of]) & (token_ids == wanted[tree_of]))
        hit_trees = tree_of[hits]
        # Hits ascend by tree, then by node: the first of each tree is its first child with that token.
        first = np.ones(len(hits), dtype=np.bool_)
        first[1:] = hit_trees[1:] != hit_trees[:-1]
        walking = hit_trees[first]
        at[walking] = hits[first] - starts[walking]
        for tree, node in zip(walking.tolist(), at[walking].tolist(), strict=True):
            accepted[tree].append(node)
    return [
        VerifiedPath(np.asarray(nodes, dtype=np.int64), np.asarray(tokens, dtype=np.int64))
        for nodes, tokens in zip(accepted, drawn, strict=True)
    ]
