"""How many nodes the trees of a step keep: the number, over the whole batch, that gives the most tokens per second.

A tree expects as many accepted tokens as its path probabilities add up to, and each sequence one bonus token. The nodes
of all trees are taken in one order, likeliest first, and every length of that order is tried, not only until the first
that does not pay: a step's duration has plateaus, so that the node after a dear one may come for nothing. It may keep
the anchors alone, which is plain decoding.

A token is worth the time that accepting it now saves. Mostly that is what a token takes on average. But the tokens of a
run that are nearly sure to follow one another, such as a passage that may or may not be copied, are had for little in
the next step, once the run's beginning has been confirmed: each saves one row, and its part of the sequence's share of
one step. So where many share a step, the beginning of a doubtful run is verified first: its rows, lost with probability
1 - p, must not take longer than p shares of a step. A sequence on its own, whose share is all of it, verifies them all.

Knows neither where probabilities nor where durations come from.
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
# What is divided by is no less.
_LEAST = 1e-12


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


def allocate(worths: NDArray[np.float64], required: BoolArray, step_seconds: FloatArray, max_nodes: int) -> Allocation:
    """`worths` [num_nodes], in tokens, are those of all trees, parents first, no child above its parent; anchors: 1.

    `required` [num_nodes], every anchor among them, are kept in any case. `step_seconds[r] > 0` is the step's duration
    with r rows; no more than its length less one, nor than `max_nodes`, are kept unless they are required. What is kept
    is connected: of equal worths the earlier node stays, which is the parent if one of them is.
    """
    least = int(np.count_nonzero(required))
    most = max(least, min(len(worths), len(step_seconds) - 1, max_nodes))
    # Above every worth, so that they come first.
    order = np.sort(np.where(required, -2.0, -worths))
    tokens = np.empty(most - least + 1)
    tokens[0] = worths[required].sum()
    tokens[1:] = -order[least:most]
    np.cumsum(tokens, out=tokens)
    if least >= len(step_seconds):
        return Allocation(required, float(tokens[0]), float(step_seconds[-1]))
    seconds = step_seconds[least : most + 1]
    best = int(np.argmax(tokens / seconds))
    kept = required.copy()
    if best:
        threshold = float(-order[least + best - 1])
        kept |= worths >= threshold
        surplus = int(np.count_nonzero(kept)) - least - best
        if surplus:
            kept[np.flatnonzero((worths == threshold) & ~required)[-surplus:]] = False
    return Allocation(kept, float(tokens[best]), float(seconds[best]))


def cut_trees(
    trees: Sequence[TokenTree],
    is_free: BoolArray,
    step_seconds: FloatArray,
    max_nodes: int,
    *,
    trust: float = 1.0,
    tokens_per_second: float = 0.0,
) -> CutTrees:
    """Cuts the trees by their `probs`; those that are not free [num_trees] keep all their nodes.

    `trust` is the part of the expected draft tokens that is counted on. `tokens_per_second` is what decoding has come
    to; a token takes as long on average, and no longer than by plain decoding.
    """
    sizes = np.array([tree.num_nodes for tree in trees], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    parents = np.concatenate([tree.parents for tree in trees], dtype=np.int64)
    path_probs = np.concatenate([tree.probs for tree in trees], dtype=np.float64)
    _multiply_paths(parents, starts, trust, path_probs)
    required = np.repeat(~is_free, sizes)
    required[starts[:-1]] = True
    row, share = _prices(step_seconds, len(trees))
    per_token = 1.0 / max(tokens_per_second, 1.0 / (row + share))
    worths = path_probs.copy()
    _weigh(parents, starts, path_probs, row / per_token, share / per_token, worths)
    allocation = allocate(worths, required, step_seconds, max_nodes)
    return CutTrees(kept_trees(trees, allocation.kept), float(path_probs[allocation.kept].sum()), allocation.seconds)


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

    0 if larger steps than one of `num_rows` cost no more.
    """
    if num_rows + 1 >= len(step_seconds):
        return 1.0
    return _BEYOND * tokens_per_second * _row_seconds(step_seconds, num_rows)


def _row_seconds(step_seconds: FloatArray, num_rows: int) -> float:
    """The fewest a row that any larger step adds to one of `num_rows`."""
    added = step_seconds[num_rows + 1 :] - step_seconds[num_rows]
    return max(0.0, float((added / np.arange(1, len(added) + 1)).min()))


def _prices(step_seconds: FloatArray, num_trees: int) -> tuple[float, float]:
    """Seconds of one row more, and of a sequence's share in a step without the row of its anchor."""
    share = float(step_seconds[min(num_trees, len(step_seconds) - 1)]) / num_trees
    row = min(share, _row_seconds(step_seconds, num_trees)) if num_trees + 1 < len(step_seconds) else share
    return row, share - row


@jit
def _weigh(
    parents: IntArray,
    starts: IntArray,
    path_probs: NDArray[np.float64],
    row: float,
    share: float,
    worths: NDArray[np.float64],
) -> None:
    """What accepting each node is worth, in place of its path probability: that, times the `row` and the part of the
    `share` that it saves, both in tokens of average price; as one token at most, and no more than its parent.
    """
    for i in range(len(starts) - 1):
        first, end = starts[i], starts[i + 1]
        for node in range(end - 1, first, -1):
            if parents[node]:
                worths[first + parents[node]] += worths[node]
        for node in range(first + 1, end):
            # Expected of the run that begins here, itself included: those who are accepted come together.
            run = max(1.0, worths[node] / max(path_probs[node], _LEAST))
            worth = path_probs[node] * min(1.0, row + share / run)
            worths[node] = min(worths[first + parents[node]], worth)


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
