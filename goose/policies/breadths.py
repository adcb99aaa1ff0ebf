"""Breadths of an isotropic tree: children of every node of a level, for the most accepted tokens within a budget.

Knows no tokens: only at which rank the target's choice was found, at each depth.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["BreadthPlan", "RankAcceptance"]

FloatMatrix = NDArray[np.float64]

# First depth of each bucket; the last is open.
_DEPTH_EDGES = (1, 2, 3, 4, 5, 7, 10, 16)
# Ranks told apart, and so the broadest level.
_NUM_RANKS = 10
# Before anything was seen: rank r is the target's choice with 0.4 / 2^r.
_PRIOR = 0.4 * 0.5 ** np.arange(_NUM_RANKS)
# What is known of a depth counts like this many observations at the next.
_PRIOR_WEIGHT = 20.0
# Observations at a depth that are remembered: old ones fade.
_MEMORY = 4096.0
# Plans are made again when there are this many times more observations.
_GROWTH = 1.25


class RankAcceptance:
    """P(the target's choice is the candidate at a rank | its parent reached), by depth, and what to plan by it."""

    def __init__(self) -> None:
        # [num_buckets, num_ranks]
        self._hits = np.zeros((len(_DEPTH_EDGES), _NUM_RANKS))
        # [num_buckets]
        self._reached = np.zeros(len(_DEPTH_EDGES))
        self._bucket_of = np.searchsorted(_DEPTH_EDGES, np.arange(1, _DEPTH_EDGES[-1] + 1), side="right") - 1
        self._num_observed = 0
        self._plan_again_at = 1.0
        self._probs = self._posterior()
        self._plans: dict[int, BreadthPlan] = {}

    def observe(self, depth: int, rank: int | None) -> None:
        """At a reached node `depth` deep, the target's choice was the candidate at `rank` below its parent, or none."""
        bucket = self._bucket(depth)
        if self._reached[bucket] >= _MEMORY:
            self._hits[bucket] *= 0.5
            self._reached[bucket] *= 0.5
        self._reached[bucket] += 1
        if rank is not None and rank < _NUM_RANKS:
            self._hits[bucket, rank] += 1
        self._num_observed += 1

    def prob(self, depth: int, rank: int) -> float:
        return float(self._probs[self._bucket(depth), rank])

    def plan(self, num_nodes: int) -> "BreadthPlan":
        """For trees of at most `num_nodes` draft nodes. Made anew from time to time."""
        if self._num_observed >= self._plan_again_at:
            self._plan_again_at = max(64.0, min(_GROWTH * self._num_observed, self._num_observed + _MEMORY))
            self._probs = self._posterior()
            self._plans.clear()
        if num_nodes not in self._plans:
            self._plans[num_nodes] = BreadthPlan(self._probs[self._bucket_of], num_nodes)
        return self._plans[num_nodes]

    def _bucket(self, depth: int) -> int:
        return int(self._bucket_of[min(depth, len(self._bucket_of)) - 1])

    def _posterior(self) -> FloatMatrix:
        """[num_buckets, num_ranks]: each depth starts from what is known of the one above."""
        rows, above = [], _PRIOR
        for hits, reached in zip(self._hits, self._reached, strict=True):
            above = (hits + _PRIOR_WEIGHT * above) / (reached + _PRIOR_WEIGHT)
            rows.append(above)
        return np.stack(rows)


class BreadthPlan:
    """Breadths k_1, k_2, … that maximise the expected number of accepted tokens, sum over l of prod_{d<=l} A_d(k_d).

    `probs` [num_depths, num_ranks]: acceptance by depth (1 first, the last stands for all below) and rank; A_d(k) is
    the sum over the first k ranks. Level l has k_1 … k_l nodes; all levels together have at most `num_nodes`.

    Exact, by dynamic programming over (nodes of the level above, nodes left), so that it also says how to go on where
    a level came out narrower than planned.
    """

    def __init__(self, probs: FloatMatrix, num_nodes: int) -> None:
        covered = np.cumsum(probs, axis=1)
        widths = np.arange(num_nodes + 1)
        # [num_depths, width + 1, left + 1]: the breadth to take, 0: the tree ends
        self._choices = np.zeros((len(probs), num_nodes + 1, num_nodes + 1), dtype=np.int8)
        # value[w, n]: expected accepted tokens below a level of w nodes with n nodes left, once that level is reached
        value = np.zeros((num_nodes + 1, num_nodes + 1))
        for left in range(1, num_nodes + 1):
            # Below the last depth told apart every level is alike, so it follows from itself with fewer nodes left.
            _choose(value, self._choices[-1], covered[-1], value, widths, np.asarray([left]))
        for depth in range(len(probs) - 2, -1, -1):
            above = np.zeros_like(value)
            _choose(above, self._choices[depth], covered[depth], value, widths, widths)
            value = above

    def breadth(self, depth: int, width: int, left: int) -> int:
        """Children of each of the `width` nodes above the level at `depth` (1 is the first), with `left` nodes left."""
        return int(self._choices[min(depth, len(self._choices)) - 1, width, left])


def _choose(
    value: FloatMatrix,
    choice: NDArray[np.int8],
    covered: NDArray[np.float64],
    below: FloatMatrix,
    widths: NDArray[np.int64],
    lefts: NDArray[np.int64],
) -> None:
    """Fills the columns `lefts` of `value` and `choice` from the values `below`."""
    for breadth, accepted in enumerate(covered.tolist(), start=1):
        nodes = widths[1:, None] * breadth
        rest = lefts[None, :] - nodes
        possible = rest >= 0
        if not possible.any():
            return
        rows, columns = np.nonzero(possible)
        wide = nodes[rows, 0]
        gained = accepted * (1.0 + below[wide, rest[rows, columns]])
        at = rows + 1, lefts[columns]
        better = gained > value[at]
        kept = at[0][better], at[1][better]
        value[kept] = gained[better]
        choice[kept] = breadth
