"""Reports for tests of the telemetry, with counts chosen by hand."""

from collections.abc import Mapping
from typing import Any

from goose.calibration import AcceptanceTable
from goose_ray.engine.stats import EngineStats
from goose_ray.telemetry.report import Incarnation, ReplicaReport

__all__ = ["report_of", "table_of"]


def table_of(counts: Mapping[str, tuple[int, int]], *, depth_bucket: int = 0, rank_bucket: int = 0) -> AcceptanceTable:
    """Source name -> (attempted, accepted), all in one bucket."""
    snapshot = AcceptanceTable(list(counts)).snapshot()
    for name, (attempted, accepted) in counts.items():
        snapshot["sources"][name][0][depth_bucket][rank_bucket] = attempted
        snapshot["sources"][name][1][depth_bucket][rank_bucket] = accepted
    return AcceptanceTable.from_snapshot(snapshot)


def report_of(
    incarnation: str,
    sequence: int,
    counts: Mapping[str, tuple[int, int]],
    *,
    replica_id: str | None = None,
    started_at: float = 0.0,
    healthy: bool = True,
    **stats: Any,
) -> ReplicaReport:
    return ReplicaReport(
        incarnation=Incarnation(replica_id or f"replica-of-{incarnation}", started_at, incarnation),
        sequence=sequence,
        model="m",
        max_model_len=64,
        healthy=healthy,
        acceptance=table_of(counts),
        stats=EngineStats(**stats),
    )
