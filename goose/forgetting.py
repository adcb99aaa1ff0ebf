"""Acceptance of late: cumulative counts with exponential forgetting, so that drift is followed.

Reads the cumulative counters that are reported anyway, so nothing is added to a step. A count weighs half once its
source has made `half_life` more attempts. The attempts between two readings are taken to have come evenly mixed: how
often the counters are read then changes nothing but how soon a change is seen.

For users of the library, as `goose.posterior` is; the cluster's tuning forgets by time, in sums of its own.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.calibration import AcceptanceTable
from goose.errors import InvalidSnapshotError

__all__ = ["RecentAcceptance"]


class RecentAcceptance:
    """Weighted counts of one incarnation. All of a source together never exceed half_life / ln 2 attempts."""

    def __init__(self, *, half_life: float) -> None:
        """Raises ValueError unless `half_life`, in attempts of a source, is above 0; infinity forgets nothing."""
        if not half_life > 0:
            raise ValueError(f"half_life must be above 0 attempts, not {half_life}")
        self._half_life = half_life
        self._read = AcceptanceTable()
        # source -> [2, num_depth_buckets, num_rank_buckets] float64: attempted, accepted
        self._counts: dict[str, NDArray[np.float64]] = {}

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(self._counts)

    def observe(self, cumulative: AcceptanceTable) -> None:
        """Takes over what was counted since the last reading.

        Raises InvalidSnapshotError if a count has fallen: these are the counters of another incarnation.
        """
        new = {name: cumulative.counts(name) - self._last(name) for name in cumulative.source_names}
        fell = [name for name, counts in new.items() if (counts < 0).any()]
        fell += [name for name in self._read.source_names if name not in new and self._last(name).any()]
        if fell:
            raise InvalidSnapshotError(f"counts of {', '.join(fell)} have fallen: they are of another incarnation")
        for name, counts in new.items():
            self._counts[name] = self._forgotten(name, int(counts[0].sum())) + self._weight(counts[0].sum()) * counts
        self._read = cumulative.copy()

    def counts(self, source_name: str) -> NDArray[np.float64]:
        """[2, num_depth_buckets, num_rank_buckets] float64: attempted and accepted of one source, a copy."""
        return self._counts[source_name].copy()

    def snapshot(self) -> dict[str, Any]:
        """JSON-able; `from_snapshot` gives it back, and counting goes on from there."""
        return {
            "half_life": self._half_life if math.isfinite(self._half_life) else None,
            "read": self._read.snapshot(),
            "recent": {name: counts.tolist() for name, counts in self._counts.items()},
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> "RecentAcceptance":
        """Raises InvalidSnapshotError naming the field that is wrong."""
        half_life, read, recent = (snapshot.get(name) for name in ("half_life", "read", "recent"))
        if not (half_life is None or (isinstance(half_life, int | float) and half_life > 0)):
            raise InvalidSnapshotError(f"half_life must be above 0, or None for never, not {half_life!r}")
        if not isinstance(read, Mapping) or not isinstance(recent, Mapping):
            raise InvalidSnapshotError("read and recent must map names to counts")
        found = cls(half_life=math.inf if half_life is None else half_life)
        found._read = AcceptanceTable.from_snapshot(read)
        for name, values in recent.items():
            found._counts[str(name)] = _counts_from(values, f"recent.{name}", found._last(str(name)).shape)
        return found

    def _last(self, name: str) -> NDArray[np.int64]:
        known = self._read if name in self._read.source_names else AcceptanceTable((name,))
        return known.counts(name)

    def _forgotten(self, name: str, attempts: int) -> NDArray[np.float64]:
        """What is left of the counts before after that many attempts more."""
        before = self._counts.get(name)
        return np.zeros(self._last(name).shape) if before is None else before * 0.5 ** (attempts / self._half_life)

    def _weight(self, attempts: int) -> float:
        """Mean weight of attempts that came evenly: the mean of 0.5^(t / half_life) over t in 0..attempts."""
        decay = math.log(2) * attempts / self._half_life
        return -math.expm1(-decay) / decay if decay > 0 else 1.0


def _counts_from(values: Any, field: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    try:
        counts = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidSnapshotError(f"{field} must be numbers of shape {shape}: {error}") from error
    if counts.shape != shape or not (counts >= 0).all() or not (counts[1] <= counts[0]).all():
        raise InvalidSnapshotError(
            f"{field} must be counts of shape {shape}, none negative, not more accepted than tried"
        )
    return counts
