"""A draft tree cut to what a grammar lets through, with the tokens it forces added and a mask for each node.

A node is kept if its token may come there and more may follow: behind the grammar's end, as behind an end-of-sequence
token, there is nothing to verify. What is dropped was never asked of the target, so it counts for nobody. A mask may
take the library long, and a tree has many: none is asked for where the last ones say that the batch would wait. Knows
one sequence and no budget but its own.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.tree import TokenTree
from goose_ray.engine.grammar import GrammarState, Place, consume
from goose_ray.engine.grammar_vocabulary import MaskArray

__all__ = ["ConstrainedTree", "constrain"]

# Longest run of forced tokens drafted at once.
_LONGEST_FORCED = 32
# Below a node that is less likely to be reached nothing is forced.
_LEAST_PROB = 0.2
# Of a processor: a mask of the committed tokens that took longer says that those of drafts would.
_LONGEST_MASK_S = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class ConstrainedTree:
    tree: TokenTree
    # [num_nodes, num_words] int32: what may follow each node; `goose_ray.engine.grammar_vocabulary`
    masks: MaskArray


def constrain(
    state: GrammarState, tree: TokenTree, *, max_depth: int, max_draft_nodes: int, forced_bit: int, patience_s: float
) -> ConstrainedTree:
    """`tree` hangs on the last committed token of `state`, which is open and is left as it was.

    `forced_bit` is the source bit of forced tokens, 0 if none are to be drafted. No more than `max_draft_nodes` are
    left, those most likely to be accepted. An error of the grammar at a node costs that node alone. Nodes are looked at
    for `patience_s` of a processor's time, the others dropped.
    """
    walk = _Walk(state, int(tree.token_ids[0]), max_depth, forced_bit, patience_s)
    try:
        walk.add_forced(0)
        walk.add_tree(tree)
        if forced_bit:
            for node in np.argsort(-walk.path_probs(), kind="stable").tolist():
                if walk.path_prob(node) < _LEAST_PROB or walk.num_draft_nodes >= max_draft_nodes:
                    break
                walk.add_forced(node)
    finally:
        walk.leave()
    return walk.result(max_draft_nodes)


class _Walk:
    """A tree that grows; the state's matcher goes where it grows, one token down or any number up."""

    def __init__(self, state: GrammarState, anchor_id: int, max_depth: int, forced_bit: int, patience_s: float) -> None:
        self._state = state
        self._is_over = state.mask_s > _LONGEST_MASK_S
        self._end_s = time.thread_time() + patience_s
        self._max_depth = max_depth
        self._forced_bit = forced_bit
        self._token_ids = [anchor_id]
        self._parents = [-1]
        self._depths = [0]
        self._sources = [0]
        self._probs = [1.0]
        self._path_probs = [1.0]
        self._masks = [state.mask]
        # of each node: token -> child; -1: a token behind which nothing is verified
        self._children: list[dict[int, int]] = [{}]
        # the nodes that the matcher has gone down, anchor excluded
        self._path: list[int] = []

    @property
    def num_draft_nodes(self) -> int:
        return len(self._token_ids) - 1

    def path_prob(self, node: int) -> float:
        return self._path_probs[node]

    def path_probs(self) -> NDArray[np.float64]:
        return np.asarray(self._path_probs)

    def add_tree(self, tree: TokenTree) -> None:
        tokens, sources, probs = tree.token_ids.tolist(), tree.sources.tolist(), tree.probs.tolist()
        below: list[list[int]] = [[] for _ in tokens]
        for node, parent in enumerate(tree.parents.tolist()[1:], start=1):
            below[parent].append(node)
        # Depth first, so that the matcher goes each edge once; of siblings the first comes first.
        pending = [(node, 0) for node in reversed(below[0])]
        while pending:
            node, parent = pending.pop()
            child = self._add(parent, tokens[node], sources[node], probs[node])
            if child is not None:
                pending += [(grandchild, child) for grandchild in reversed(below[node])]

    def add_forced(self, node: int) -> None:
        """The run of tokens below a node that are the only text that may stand there."""
        for _ in range(_LONGEST_FORCED if self._forced_bit else 0):
            token = self._state.grammar.forced(self._masks[node])
            child = None if token is None else self._add(node, token, self._forced_bit, 1.0)
            if child is None:
                return
            node = child

    def leave(self) -> None:
        """Puts the matcher back behind the committed tokens."""
        self._go_up(0)

    def result(self, max_draft_nodes: int) -> ConstrainedTree:
        tree = TokenTree(
            token_ids=np.asarray(self._token_ids, dtype=np.int64),
            parents=np.asarray(self._parents, dtype=np.int64),
            depths=np.asarray(self._depths, dtype=np.int64),
            sources=np.asarray(self._sources, dtype=np.int64),
            probs=np.asarray(self._probs, dtype=np.float32),
        )
        masks = np.stack(self._masks)
        if self.num_draft_nodes > max_draft_nodes:
            # A path's probability never grows, and of equals the parent comes first, so what is kept is a tree.
            kept = np.sort(np.argsort(-self.path_probs(), kind="stable")[: max_draft_nodes + 1])
            tree, masks = tree.only(kept), masks[kept]
        return ConstrainedTree(tree, masks)

    def _add(self, parent: int, token: int, sources: int, prob: float) -> int | None:
        """The child with that token, new or not; None if it is not to be verified."""
        child = self._children[parent].get(token)
        if child is None:
            child = self._children[parent][token] = self._new(parent, token, sources, prob)
        elif child >= 0:
            self._sources[child] |= sources
        return child if child >= 0 else None

    def _new(self, parent: int, token: int, sources: int, prob: float) -> int:
        depth = self._depths[parent] + 1
        word = int(self._masks[parent][token >> 5])
        if depth > self._max_depth or not word >> (token & 31) & 1:
            return -1
        self._is_over = self._is_over or time.thread_time() >= self._end_s
        if self._is_over:
            return -1
        self._go_to(parent)
        matcher = self._state.matcher
        matcher.consume_token(token)
        place, mask = self._state.grammar.look(matcher)
        if place is not Place.OPEN:
            if matcher.is_error() or not self._state.grammar.go_back(matcher, 1):
                # It never leaves an error: another one has to go on, from the anchor.
                self._path = []
                self._state.restore()
            return -1
        node = len(self._token_ids)
        self._path.append(node)
        self._token_ids.append(token)
        self._parents.append(parent)
        self._depths.append(depth)
        self._sources.append(sources)
        self._probs.append(prob)
        self._path_probs.append(self._path_probs[parent] * prob)
        self._masks.append(mask)
        self._children.append({})
        return node

    def _go_to(self, node: int) -> None:
        down: list[int] = []
        while self._depths[node] > len(self._path):
            down.append(node)
            node = self._parents[node]
        while self._depths[node] and self._path[self._depths[node] - 1] != node:
            down.append(node)
            node = self._parents[node]
        self._go_up(self._depths[node])
        if down:
            self._path += reversed(down)
            consume(self._state.matcher, [self._token_ids[n] for n in reversed(down)])

    def _go_up(self, depth: int) -> None:
        steps = len(self._path) - depth
        if steps:
            del self._path[depth:]
            if not self._state.grammar.go_back(self._state.matcher, steps):
                self._state.restore()
                consume(self._state.matcher, [self._token_ids[n] for n in self._path])
