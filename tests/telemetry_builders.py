"""Reports for tests of the telemetry, with counts chosen by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from goose.calibration import AcceptanceTable
from goose.tuning import TreeTuning
from goose.tuning_counts import ACCEPTED, ATTEMPTED, DEPTHS, GROUPS, NUM_SUMS, VR, TuningCounts, V
from goose_ray.engine.stats import EngineStats
from goose_ray.telemetry.report import Incarnation, ReplicaReport

__all__ = ["counts_of", "report_of", "table_of"]


def table_of(counts: Mapping[str, tuple[int, int]], *, depth_bucket: int = 0, rank_bucket: int = 0) -> AcceptanceTable:
    """Source name -> (attempted, accepted), all in one bucket."""
    snapshot = AcceptanceTable(list(counts)).snapshot()
    for name, (attempted, accepted) in counts.items():
        snapshot["sources"][name][0][depth_bucket][rank_bucket] = attempted
        snapshot["sources"][name][1][depth_bucket][rank_bucket] = accepted
    return AcceptanceTable.from_snapshot(snapshot)


def counts_of(shift: float, attempted: float = 1000.0) -> TuningCounts:
    """Of nodes at even odds, accepted as if their log-odds were higher by `shift`."""
    sums = np.zeros((len(GROUPS), len(DEPTHS), NUM_SUMS))
    sums[:, 0, ATTEMPTED], sums[:, 0, ACCEPTED] = attempted, attempted / 2
    sums[:, 0, V], sums[:, 0, VR] = attempted / 4, attempted / 4 * shift
    return TuningCounts(sums, attempted)


def report_of(
    incarnation: str,
    sequence: int,
    counts: Mapping[str, tuple[int, int]],
    *,
    replica_id: str | None = None,
    started_at: float = 0.0,
    healthy: bool = True,
    tuning_counts: TuningCounts | None = None,
    tuning: TreeTuning | None = None,
    model: str = "m",
    workload: str = "",
    uptime_s: float = 0.0,
    **stats: Any,
) -> ReplicaReport:
    return ReplicaReport(
        incarnation=Incarnation(replica_id or f"replica-of-{incarnation}", started_at, incarnation),
        sequence=sequence,
        model=model,
        max_model_len=64,
        healthy=healthy,
        acceptance=table_of(counts),
        stats=EngineStats(**stats),
        tuning_counts=tuning_counts or TuningCounts.none(),
        tuning=tuning or TreeTuning(),
        workload=workload,
        uptime_s=uptime_s,
    )
