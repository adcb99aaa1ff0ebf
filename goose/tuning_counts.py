"""How right the probabilities of draft nodes were, by source group and depth: sums that add up over replicas and time.

Each reached draft node is one observation of a logistic model, `logit P(accepted) = temperature * (z + offset)`, where
z is what the untuned model says and the offset is its source group's. One step of iteratively reweighted least squares
from the untuned model needs seven sums of it and nothing else (`goose.tuning` solves for offsets and temperature). They
do not depend on what the trees were tuned to when they were counted, so counts of differently tuned replicas add up.

A node copied from the request's own text is of the group `context`, else one seen in other outputs of `pool`, else of
`transitions`. Knows neither who adds the counts up nor when.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.tree import IntArray, TokenTree

__all__ = ["DEPTHS", "GROUPS", "NUM_SUMS", "TuningCounts"]

GROUPS = ("context", "pool", "transitions")
# First depth of each bucket; the last one is open.
DEPTHS = (1, 2, 4, 9)
# The sums: nodes, accepted ones, their probabilities p; then with v = p (1 - p), z and the working response
# r = logit p - z + (accepted - p) / v: v, v z, v z^2, v r, v z r.
ATTEMPTED, ACCEPTED, PREDICTED, V, VZ, VZZ, VR, VZR = range(8)
NUM_SUMS = 8
_SHAPE = (len(GROUPS), len(DEPTHS), NUM_SUMS)
# A node that is nearly certain says nothing of offsets, and would divide by nothing.
_MIN_PROBABILITY = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class TuningCounts:
    """Cumulative, or weighted by age. Values add and subtract elementwise."""

    # [num_groups, num_depths, NUM_SUMS] float64
    sums: NDArray[np.float64]
    # verified trees
    num_trees: float

    @classmethod
    def none(cls) -> "TuningCounts":
        return cls(np.zeros(_SHAPE), 0.0)

    def __add__(self, other: "TuningCounts") -> "TuningCounts":
        return TuningCounts(self.sums + other.sums, self.num_trees + other.num_trees)

    def __sub__(self, other: "TuningCounts") -> "TuningCounts":
        return TuningCounts(self.sums - other.sums, self.num_trees - other.num_trees)

    def __mul__(self, weight: float) -> "TuningCounts":
        return TuningCounts(self.sums * weight, self.num_trees * weight)

    def __reduce__(self) -> "tuple[Callable[[bytes, float], TuningCounts], tuple[bytes, float]]":
        """Travels in single precision, in half a kilobyte."""
        return _unpacked, (self.sums.astype(np.float32).tobytes(), self.num_trees)

    @property
    def attempted(self) -> float:
        return float(self.sums[..., ATTEMPTED].sum())

    @classmethod
    def of(
        cls,
        trees: Sequence[TokenTree],
        accepted_nodes: Sequence[IntArray],
        *,
        bits: Sequence[int],
        offsets: NDArray[np.float64],
        temperatures: NDArray[np.float64],
    ) -> "TuningCounts":
        """Verified trees; `accepted_nodes[i]` are the committed nodes of tree i's path, anchor excluded.

        `bits` are those of GROUPS in `TokenTree.sources`; `offsets` [num_trees, num_groups] and `temperatures`
        [num_trees] what the probabilities of each tree were made with.
        """
        if not trees:
            return cls.none()
        sizes = np.array([tree.num_nodes for tree in trees])
        starts = np.cumsum(sizes) - sizes
        tree_of = np.repeat(np.arange(len(trees)), sizes)
        parents, depths, sources, probs = (
            np.concatenate([getattr(tree, name) for tree in trees])
            for name in ("parents", "depths", "sources", "probs")
        )
        accepted = np.zeros(len(parents), np.bool_)
        accepted[np.concatenate([nodes + start for nodes, start in zip(accepted_nodes, starts, strict=True)])] = True
        is_open = accepted.copy()
        is_open[starts] = True
        # An anchor's parent stands at -1, in another tree; it is no draft node itself.
        reached = is_open[np.maximum(parents + starts[tree_of], 0)]
        reached[starts] = False
        # What no source offered, a forced token say, has no probability of ours.
        nodes = np.flatnonzero(reached & (sources != 0))
        p = np.clip(probs[nodes].astype(np.float64), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        sources, trees_of, hit = sources[nodes], tree_of[nodes], accepted[nodes]
        groups = np.where(sources & bits[0], 0, np.where(sources & bits[1], 1, 2))
        logit, v = np.log(p / (1 - p)), p * (1 - p)
        z = logit / temperatures[trees_of] - offsets[trees_of, groups]
        vr = v * (logit - z) + hit - p
        terms = (np.ones(len(p)), hit, p, v, v * z, v * z * z, vr, z * vr)
        cells = groups * len(DEPTHS) + np.searchsorted(DEPTHS, depths[nodes], side="right") - 1
        num_cells = len(GROUPS) * len(DEPTHS)
        sums = np.stack([np.bincount(cells, weights=term, minlength=num_cells) for term in terms], axis=-1).astype(
            np.float64
        )
        return cls(sums.reshape(_SHAPE), float(len(trees)))


def _unpacked(sums: bytes, num_trees: float) -> TuningCounts:
    return TuningCounts(np.frombuffer(sums, np.float32).astype(np.float64).reshape(_SHAPE), num_trees)
