"""Reports as JSON-able data and back, for snapshots: plain to read, and safe to read whoever wrote them.

What a report says of its replica's tuning is left out: the next report says it anew.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from goose.calibration import AcceptanceTable
from goose_ray.engine.request import SourceStats
from goose_ray.engine.stats import EngineStats, Histogram
from goose_ray.telemetry.report import Incarnation, ReplicaReport

__all__ = ["report_from_json", "report_to_json", "stats_from_json", "stats_to_json"]


def stats_to_json(stats: EngineStats) -> dict[str, Any]:
    return asdict(stats)


def stats_from_json(data: Mapping[str, Any]) -> EngineStats:
    """What is not known any more is left out, what is new starts at zero. Raises ValueError, TypeError or KeyError."""
    empty, values = EngineStats(), {}
    for each in fields(EngineStats):
        if each.name in data:
            values[each.name] = _like(getattr(empty, each.name), each.name, data[each.name])
    return EngineStats(**values)


def report_to_json(report: ReplicaReport) -> dict[str, Any]:
    return {
        "incarnation": asdict(report.incarnation),
        "sequence": report.sequence,
        "model": report.model,
        "max_model_len": report.max_model_len,
        "workload": report.workload,
        "uptime_s": report.uptime_s,
        "acceptance": report.acceptance.snapshot(),
        "stats": stats_to_json(report.stats),
    }


def report_from_json(data: Mapping[str, Any]) -> ReplicaReport:
    """Not healthy until it reports again. Raises ValueError, TypeError or KeyError if it is no report."""
    return ReplicaReport(
        incarnation=Incarnation(**data["incarnation"]),
        sequence=int(data["sequence"]),
        model=str(data["model"]),
        max_model_len=int(data["max_model_len"]),
        healthy=False,
        acceptance=AcceptanceTable.from_snapshot(data["acceptance"]),
        stats=stats_from_json(data["stats"]),
        workload=str(data["workload"]),
        uptime_s=float(data["uptime_s"]),
    )


def _like(empty: Any, name: str, value: Any) -> Any:
    if isinstance(empty, Histogram):
        if tuple(value["bounds"]) != empty.bounds or len(value["counts"]) != len(empty.counts):
            # other buckets: their sum would be nobody's
            return empty
        return Histogram(empty.bounds, tuple(map(int, value["counts"])), float(value["sum"]))
    if isinstance(empty, tuple):
        return tuple(map(int, value))
    if isinstance(empty, Mapping):
        return {key: SourceStats(**each) if name == "by_source" else int(each) for key, each in value.items()}
    return type(empty)(value)
