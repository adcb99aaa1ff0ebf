"""The merge of all replicas' reports: what the aggregator actor keeps, without the actor.

Within an incarnation acceptance counts merge by maximum and the newest report's engine statistics stand; over
incarnations counts add up. Observing is associative, commutative and idempotent, so delivery may lose, repeat, delay
and reorder reports. Knows neither Ray nor time: the caller says what time it is.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from goose.calibration import AcceptanceTable
from goose_ray.engine.stats import EngineStats, merge_stats
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.report_json import report_from_json, report_to_json, stats_from_json, stats_to_json

__all__ = ["AcceptanceState", "ClusterView", "ReplicaView", "RetiredView"]

# A folded incarnation that speaks again is told by its id; more of them than this are forgotten, oldest first.
_MAX_FOLDED = 8192


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaView:
    """One incarnation: its newest report, with the acceptance of all its reports merged."""

    report: ReplicaReport
    # seconds since a report of it arrived
    age_s: float
    # heard of recently enough to be believed alive
    live: bool


@dataclass(frozen=True, slots=True, eq=False)
class RetiredView:
    """What the incarnations came to that are silent and no longer listed one by one."""

    num_incarnations: int
    acceptance: AcceptanceTable
    stats: EngineStats


@dataclass(frozen=True, slots=True, eq=False)
class ClusterView:
    """Live incarnations first, each group in order of start."""

    replicas: tuple[ReplicaView, ...]
    retired: RetiredView

    @property
    def live(self) -> tuple[ReplicaView, ...]:
        return tuple(replica for replica in self.replicas if replica.live)

    @property
    def healthy(self) -> tuple[ReplicaView, ...]:
        return tuple(replica for replica in self.live if replica.report.healthy)

    def acceptance(self) -> AcceptanceTable:
        """The cluster's table: the sum over all incarnations ever heard of."""
        return _sum_tables([self.retired.acceptance, *(replica.report.acceptance for replica in self.replicas)])

    def gone(self) -> EngineStats:
        """Counters of all incarnations that are no longer live; its gauges are zero."""
        silent = (_without_gauges(replica.report.stats) for replica in self.replicas if not replica.live)
        return merge_stats([self.retired.stats, *silent])


@dataclass(slots=True)
class _Incarnation:
    report: ReplicaReport
    heard_at: float


@dataclass(frozen=True, slots=True)
class _Folded:
    # pickled, which compresses it
    report: bytes
    heard_at: float


class AcceptanceState:
    """Bounded: of more than `max_incarnations` the longest silent ones are folded into one sum, out of which one that
    was silent and not dead is taken again when it speaks.

    `live_for_s`: an incarnation counts as live that long after its last report.
    """

    def __init__(
        self, *, live_for_s: float, max_incarnations: int = 256, on_fold: Callable[[str], object] = lambda _: None
    ) -> None:
        """`on_fold` is told the id of each incarnation that is listed no longer."""
        self._on_fold = on_fold
        self._live_for_s = live_for_s
        self._max_incarnations = max_incarnations
        self._incarnations: dict[str, _Incarnation] = {}
        # None: it was folded before this state was restored, and is in the sum for good
        self._folded: dict[str, _Folded | None] = {}
        # the sum of what can no longer be taken out, and that of all; None: to be added up again
        self._forgotten = RetiredView(0, AcceptanceTable(), EngineStats())
        self._retired: RetiredView | None = self._forgotten

    def observe(self, report: ReplicaReport, now: float) -> bool:
        """Merges one report that arrived at `now` (seconds on any monotonic clock, the same in every call).

        False if it is the newest of its incarnation no longer, and so says nothing of the present.
        """
        key = report.incarnation.id
        if key in self._folded and not self._unfold(key):
            return False
        known = self._incarnations.get(key)
        if known is None:
            self._incarnations[key] = _Incarnation(report, now)
            self._fold_surplus(now)
            return True
        acceptance = known.report.acceptance.merge_max(report.acceptance)
        if report.sequence > known.report.sequence:
            known.heard_at = now
            known.report = replace(report, acceptance=acceptance)
            return True
        # late or repeated: no sign of life, and its gauges are old
        known.report = replace(known.report, acceptance=acceptance)
        return False

    def view(self, now: float) -> ClusterView:
        replicas = [
            ReplicaView(known.report, now - known.heard_at, self._is_live(known, now))
            for known in self._incarnations.values()
        ]
        replicas.sort(key=lambda replica: (not replica.live, replica.report.incarnation.started_at))
        return ClusterView(
            tuple(replicas),
            self._retired_view(),
        )

    def snapshot(self, now: float) -> dict[str, Any]:
        """JSON-able; `restore` gives it back."""
        retired = self._retired_view()
        return {
            "incarnations": [
                {"report": report_to_json(known.report), "silent_s": now - known.heard_at}
                for known in self._incarnations.values()
            ],
            "folded": {
                "ids": list(self._folded),
                "count": retired.num_incarnations,
                "acceptance": retired.acceptance.snapshot(),
                "stats": stats_to_json(retired.stats),
            },
        }

    def restore(self, snapshot: Mapping[str, Any], now: float, *, age_s: float) -> None:
        """Into a state that has seen nothing; `age_s` is how long ago the snapshot was made.

        Raises ValueError, TypeError or KeyError if it is none.
        """
        incarnations = [
            _Incarnation(report_from_json(each["report"]), now - max(0.0, age_s) - float(each["silent_s"]))
            for each in snapshot["incarnations"]
        ]
        folded = snapshot["folded"]
        acceptance, stats = AcceptanceTable.from_snapshot(folded["acceptance"]), stats_from_json(folded["stats"])
        self._folded = dict.fromkeys(map(str, folded["ids"]))
        self._forgotten = self._retired = RetiredView(int(folded["count"]), acceptance, stats)
        self._incarnations = {each.report.incarnation.id: each for each in incarnations}

    def _is_live(self, known: _Incarnation, now: float) -> bool:
        return now - known.heard_at <= self._live_for_s

    def _fold_surplus(self, now: float) -> None:
        """Live ones are never folded, however many there are: their next report would be lost."""
        surplus = len(self._incarnations) - self._max_incarnations
        if surplus <= 0:
            return
        silent = [key for key, known in self._incarnations.items() if not self._is_live(known, now)]
        silent.sort(key=lambda key: self._incarnations[key].heard_at)
        for key in silent[:surplus]:
            known = self._incarnations.pop(key)
            self._folded[key] = _Folded(pickle.dumps(known.report, pickle.HIGHEST_PROTOCOL), known.heard_at)
            if self._retired is not None:
                self._retired = _with(self._retired, known.report)
            self._on_fold(key)
            if len(self._folded) > _MAX_FOLDED:
                oldest = self._folded.pop(next(iter(self._folded)))
                if oldest is not None:
                    self._forgotten = _with(self._forgotten, pickle.loads(oldest.report))

    def _unfold(self, key: str) -> bool:
        """Back among those that are listed, as it was; False if it cannot be taken out of the sum."""
        folded = self._folded[key]
        if folded is None:
            return False
        del self._folded[key]
        self._incarnations[key] = _Incarnation(pickle.loads(folded.report), folded.heard_at)
        self._retired = None
        return True

    def _retired_view(self) -> RetiredView:
        if self._retired is None:
            self._retired = self._forgotten
            for folded in self._folded.values():
                if folded is not None:
                    self._retired = _with(self._retired, pickle.loads(folded.report))
        return self._retired


def _with(retired: RetiredView, report: ReplicaReport) -> RetiredView:
    return RetiredView(
        retired.num_incarnations + 1,
        retired.acceptance.add(report.acceptance),
        merge_stats([retired.stats, _without_gauges(report.stats)]),
    )


def _sum_tables(tables: Iterable[AcceptanceTable]) -> AcceptanceTable:
    total = AcceptanceTable()
    for table in tables:
        total = total.add(table)
    return total


def _without_gauges(stats: EngineStats) -> EngineStats:
    return replace(stats, num_requests_running=0, num_requests_waiting=0, kv_slots_used=0, kv_slots_total=0)
