"""How many nodes the trees of a step keep: the number, over the whole batch, that gives the most tokens per second.

A tree expects as many accepted tokens as its path probabilities add up to, and each sequence one bonus token. The nodes
of all trees are taken in one order, likeliest first, and every length of that order is tried, not only until the first
that does not pay: a step's duration has plateaus, so that the node after a dear one may come for nothing. It may keep
the anchors alone, which is plain decoding. Knows neither where probabilities nor where durations come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.jit import jit
from goose.tree import BoolArray, FloatArray, IntArray, TokenTree

__all__ = ["Allocation", "CutTrees", "allocate", "cut_trees", "kept_trees", "least_worth"]

# Part of the least probability that was worth a row which is still built: what a plateau may make worth it.
_BEYOND = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """What of a batch is verified."""

    # [num_nodes] bool
    kept: BoolArray
    # tokens that the step should commit, bonus included, and seconds that it should take
    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class CutTrees:
    """Trees of the kept nodes, those that lost none as they were."""

    trees: list[TokenTree]
    tokens: float
    seconds: float


def allocate(
    path_probs: NDArray[np.float64], required: BoolArray, step_seconds: FloatArray, max_nodes: int
) -> Allocation:
    """`path_probs` [num_nodes] are those of all trees, parents first, no child above its parent; an anchor has 1.

    `required` [num_nodes], every anchor among them, are kept in any case. `step_seconds[r] > 0` is the step's duration
    with r rows; no more than its length less one, nor than `max_nodes`, are kept unless they are required. What is kept
    is connected: of equal probabilities the earlier node stays, which is the parent if one of them is.
    """
    least = int(np.count_nonzero(required))
    most = max(least, min(len(path_probs), len(step_seconds) - 1, max_nodes))
    # Above every probability, so that they come first.
    order = np.sort(np.where(required, -2.0, -path_probs))
    tokens = np.empty(most - least + 1)
    tokens[0] = path_probs[required].sum()
    tokens[1:] = -order[least:most]
    np.cumsum(tokens, out=tokens)
    if least >= len(step_seconds):
        return Allocation(required, float(tokens[0]), float(step_seconds[-1]))
    seconds = step_seconds[least : most + 1]
    best = int(np.argmax(tokens / seconds))
    kept = required.copy()
    if best:
        threshold = float(-order[least + best - 1])
        kept |= path_probs >= threshold
        surplus = int(np.count_nonzero(kept)) - least - best
        if surplus:
            kept[np.flatnonzero((path_probs == threshold) & ~required)[-surplus:]] = False
    return Allocation(kept, float(tokens[best]), float(seconds[best]))


def cut_trees(
    trees: Sequence[TokenTree],
    is_free: BoolArray,
    step_seconds: FloatArray,
    max_nodes: int,
    *,
    trust: float = 1.0,
) -> CutTrees:
    """Cuts the trees by their `probs`; those that are not free [num_trees] keep all their nodes.

    `trust` is the part of the expected draft tokens that is counted on.
    """
    sizes = np.array([tree.num_nodes for tree in trees], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    parents = np.concatenate([tree.parents for tree in trees], dtype=np.int64)
    path_probs = np.concatenate([tree.probs for tree in trees], dtype=np.float64)
    _multiply_paths(parents, starts, trust, path_probs)
    required = np.repeat(~is_free, sizes)
    required[starts[:-1]] = True
    allocation = allocate(path_probs, required, step_seconds, max_nodes)
    return CutTrees(kept_trees(trees, allocation.kept), allocation.tokens, allocation.seconds)


def kept_trees(trees: Sequence[TokenTree], kept: BoolArray) -> list[TokenTree]:
    """Trees of the nodes `kept` [num_nodes], which are connected and every anchor among them; those that lost none as
    they were.
    """
    nodes = np.flatnonzero(kept)
    if len(nodes) == len(kept):
        return list(trees)
    sizes = np.array([tree.num_nodes for tree in trees], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    ends = np.searchsorted(nodes, starts)
    token_ids, parents, depths, sources, probs = (
        np.concatenate([getattr(tree, name) for tree in trees])
        for name in ("token_ids", "parents", "depths", "sources", "probs")
    )
    # Where a kept node stands among the kept ones of its tree.
    places = np.cumsum(kept) - 1 - np.repeat(ends[:-1], sizes)
    above = places[np.maximum(parents + np.repeat(starts[:-1], sizes), 0)[nodes]]
    above[ends[:-1]] = -1
    token_ids, depths, sources, probs = token_ids[nodes], depths[nodes], sources[nodes], probs[nodes]
    cut = []
    for tree, low, high in zip(trees, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        part = slice(low, high)
        if high - low == tree.num_nodes:
            cut.append(tree)
        else:
            cut.append(TokenTree(token_ids[part], above[part], depths[part], sources[part], probs[part]))
    return cut


def least_worth(step_seconds: FloatArray, num_rows: int, tokens_per_second: float) -> float:
    """The path probability below which a node need not be built: what half a row costs in tokens.

    A row's seconds are the fewest a row that any larger step adds to one of `num_rows`; 0 if larger ones cost no more.
    """
    if num_rows + 1 >= len(step_seconds):
        return 1.0
    added = step_seconds[num_rows + 1 :] - step_seconds[num_rows]
    return max(0.0, _BEYOND * tokens_per_second * float((added / np.arange(1, len(added) + 1)).min()))


@jit
def _multiply_paths(parents: IntArray, starts: IntArray, trust: float, probs: NDArray[np.float64]) -> None:
    """Of trees that begin at `starts` [num_trees + 1] puts, in place of each node's own, the product of `probs` from
    the anchor, which has 1, down; of drafts the part that is trusted.
    """
    for i in range(len(starts) - 1):
        first = starts[i]
        probs[first] = 1.0
        for node in range(first + 1, starts[i + 1]):
            above = first + parents[node]
            product = probs[node] * probs[above] * (trust if above == first else 1.0)
            probs[node] = min(probs[above], product)
