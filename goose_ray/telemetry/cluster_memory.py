"""All that the aggregator remembers, without the actor: acceptance, tuning, and what new replicas start from.

Knows neither Ray nor time nor files: the caller says what time it is, and keeps snapshots.
"""

from collections.abc import Mapping
from typing import Any

from goose.tuning import TreeTuning
from goose_ray.telemetry.acceptance_state import AcceptanceState, ClusterView
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.tuning_state import TuningState
from goose_ray.telemetry.warm_starts import Offer, WarmStart, WarmStarts

__all__ = ["ClusterMemory"]

_FORMAT = 2


class ClusterMemory:
    """`now` is in seconds, on one monotonic clock; `started_at`, in unix seconds, is when this memory began.

    A memory that begins knows little of the cluster until each replica has reported: it tunes nobody for `live_for_s`,
    and replicas go on with the tuning that they have. One that does not tune never does.
    """

    def __init__(
        self, *, live_for_s: float, half_life_s: float, now: float, started_at: float, tunes: bool = True
    ) -> None:
        self._tuning = TuningState(half_life_s=half_life_s, first_version=int(started_at))
        self._acceptance = AcceptanceState(live_for_s=live_for_s, on_fold=self._tuning.forget)
        self._warm_starts = WarmStarts()
        self._tunes = tunes
        self._tunes_from = now + live_for_s

    def observe(self, report: ReplicaReport, now: float) -> TreeTuning | None:
        """Merges a report; gives the replica's tuning if it is another than the report says."""
        if not self._acceptance.observe(report, now):
            return None
        self._tuning.observe(report, now)
        if not self._tunes or now < self._tunes_from:
            return None
        tuning = self._tuning.tuning(report.incarnation.id, now)
        return None if tuning.version == report.tuning.version else tuning

    def view(self, now: float) -> ClusterView:
        return self._acceptance.view(now)

    def publish(self, offer: Offer) -> None:
        self._warm_starts.publish(offer)

    def warm_start(self, model: str) -> WarmStart:
        return self._warm_starts.start(model)

    def snapshot(self, now: float, unix_time: float) -> dict[str, Any]:
        """JSON-able; texts are not in it."""
        return {
            "format": _FORMAT,
            "unix_time": unix_time,
            "acceptance": self._acceptance.snapshot(now),
            "tuning": self._tuning.snapshot(now),
            "weights": self._warm_starts.snapshot(),
        }

    def restore(self, snapshot: Mapping[str, Any], now: float, unix_time: float) -> None:
        """Into a memory that has seen nothing, which then tunes at once. Raises ValueError if it is no snapshot; a
        memory that it was tried on is then good for nothing.
        """
        try:
            if snapshot["format"] != _FORMAT:
                raise ValueError(f"format {snapshot['format']!r}, not {_FORMAT}")
            age_s = unix_time - float(snapshot["unix_time"])
            self._tuning.restore(snapshot["tuning"], now, age_s=age_s)
            self._acceptance.restore(snapshot["acceptance"], now, age_s=age_s)
            self._warm_starts.restore(snapshot["weights"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a snapshot of this version: {error!r}") from error
        self._tunes_from = now
