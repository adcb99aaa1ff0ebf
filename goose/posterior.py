"""What is known of a source's acceptance: Beta posteriors by depth and rank, where few attempts lean on many.

Four levels, each the prior of the next: nothing known (Jeffreys), the source in the cluster, its depth there, its depth
and rank there; then one's own counts. A bucket that nobody has tried is thus worth what its source and depth are, and
own experience overrules the cluster's once it is more than `max_prior_strength` attempts. Knows neither where the
counts are from nor what is done with the probabilities.

For users of the library: no policy asks it, `anisotropic` learns probabilities of its own (docs/calibration.md).
"""

from bisect import bisect_right
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from goose.beta import Beta
from goose.calibration import DEPTH_EDGES, RANK_EDGES, AcceptanceTable

__all__ = ["AcceptancePosterior", "Counts"]

# Attempts that a level's mean is worth to the level below it.
_LEVEL_STRENGTH = 10.0


class Counts(Protocol):
    """An `AcceptanceTable`, or a `RecentAcceptance`, whose counts are weighted."""

    @property
    def source_names(self) -> tuple[str, ...]: ...

    def counts(self, source_name: str, /) -> NDArray[np.int64] | NDArray[np.float64]:
        """[2, num_depth_buckets, num_rank_buckets]: attempted and accepted."""
        ...


class AcceptancePosterior:
    """Posteriors of one's own counts, given the table of the cluster.

    `cluster` should leave out what `own` counts: attempts in both count twice. `max_prior_strength` bounds what the
    cluster's experience with a bucket is worth, in attempts.
    """

    def __init__(self, own: Counts, *, cluster: Counts | None = None, max_prior_strength: float = 100.0) -> None:
        if not max_prior_strength > 0:
            raise ValueError(f"max_prior_strength must be above 0 attempts, not {max_prior_strength}")
        self._own, self._cluster = own, AcceptanceTable() if cluster is None else cluster
        self._max_prior_strength = max_prior_strength
        self._means: dict[str, NDArray[np.float64]] = {}

    @property
    def source_names(self) -> tuple[str, ...]:
        """Those that anyone has counts of; of any other source it is known that nothing is known."""
        return tuple(dict.fromkeys((*self._own.source_names, *self._cluster.source_names)))

    def prior(self, source_name: str, depth: int, rank: int) -> Beta:
        """What others' counts say of nodes of that depth (from 1) and rank (from 0) among their source's siblings."""
        bucket = _bucket(depth, rank)
        attempted = float(_counts(self._cluster, source_name)[0, *bucket])
        strength = min(_LEVEL_STRENGTH + attempted, self._max_prior_strength)
        return Beta.around(float(self._prior_means(source_name)[bucket]), strength)

    def at(self, source_name: str, depth: int, rank: int) -> Beta:
        """The posterior for nodes of that depth and rank."""
        attempted, accepted = _counts(self._own, source_name)[:, *_bucket(depth, rank)].tolist()
        return self.prior(source_name, depth, rank).updated(accepted, attempted)

    def means(self, source_name: str) -> NDArray[np.float64]:
        """[num_depth_buckets, num_rank_buckets] float64: the mean of each bucket's posterior."""
        return np.array(
            [[self.at(source_name, depth, rank).mean for rank in RANK_EDGES] for depth in DEPTH_EDGES],
        )

    def _prior_means(self, source_name: str) -> NDArray[np.float64]:
        """[num_depth_buckets, num_rank_buckets] float64, each strictly inside 0..1."""
        if source_name not in self._means:
            attempted, accepted = _counts(self._cluster, source_name)
            source = Beta.of_trials(float(accepted.sum()), float(attempted.sum())).mean
            by_depth = _towards(source, accepted.sum(axis=1), attempted.sum(axis=1))
            self._means[source_name] = _towards(by_depth[:, None], accepted, attempted)
        return self._means[source_name]


def _towards(
    mean: float | NDArray[np.float64], accepted: NDArray[np.float64], attempted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shares accepted, drawn towards the mean of the level above."""
    drawn: NDArray[np.float64] = (_LEVEL_STRENGTH * mean + accepted) / (_LEVEL_STRENGTH + attempted)
    return drawn


def _counts(counts: Counts, source_name: str) -> NDArray[np.float64]:
    if source_name not in counts.source_names:
        return np.zeros((2, len(DEPTH_EDGES), len(RANK_EDGES)))
    return counts.counts(source_name).astype(np.float64)


def _bucket(depth: int, rank: int) -> tuple[int, int]:
    if depth < 1 or rank < 0:
        raise ValueError(f"depth must be at least 1 and rank at least 0, not {depth} and {rank}")
    return bisect_right(DEPTH_EDGES, depth) - 1, bisect_right(RANK_EDGES, rank) - 1
