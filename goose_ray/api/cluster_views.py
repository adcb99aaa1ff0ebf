"""What `/v1/goose/...` and `/health` show of the cluster, as JSON-able data."""

from dataclasses import asdict
from typing import Any

from goose.calibration import DEPTH_EDGES, RANK_EDGES, AcceptanceTable
from goose.tuning import TreeTuning
from goose.tuning_counts import DEPTHS, GROUPS
from goose_ray.api.backend import ClusterState, ReplicaSteps
from goose_ray.telemetry.acceptance_state import ClusterView, ReplicaView
from goose_ray.telemetry.bucket_ranges import bucket_ranges

__all__ = ["acceptance_view", "health_view", "steps_view"]


def acceptance_view(state: ClusterState) -> dict[str, Any]:
    """The cluster's table per source, its total, and the replicas it is the sum of.

    `sources` equals the sum of `replicas[*].sources` and `retired.sources`.
    """
    view = state.view
    table = view.acceptance()
    totals = table.totals()
    return {
        "object": "goose.acceptance",
        # false while the aggregator is away: then this is the sum of the replicas that answered just now
        "remembered": state.remembered,
        "total": _counts(sum(a for a, _ in totals.values()), sum(c for _, c in totals.values())),
        "sources": {name: _source(table, name) for name in sorted(totals)},
        "positions": _positions(table),
        # the newest that a living replica uses; each uses its own, see `replicas[*].tuning`
        "tuning_version": max((replica.report.tuning.version for replica in view.live), default=0),
        "replicas": [_replica(replica) for replica in view.replicas],
        "retired": {"incarnations": view.retired.num_incarnations, "sources": _totals(view.retired.acceptance)},
    }


def health_view(view: ClusterView) -> dict[str, Any]:
    """`status` is ok while at least one replica can answer."""
    return {
        "status": "ok" if view.healthy else "unhealthy",
        "replicas": {"live": len(view.live), "healthy": len(view.healthy)},
    }


def steps_view(replicas: list[ReplicaSteps]) -> dict[str, Any]:
    return {
        "object": "goose.steps",
        "replicas": [
            {"replica_id": replica.replica_id, "steps": [asdict(step) for step in replica.steps]}
            for replica in replicas
        ],
    }


def _counts(attempted: int, accepted: int) -> dict[str, Any]:
    return {
        "attempted": attempted,
        "accepted": accepted,
        "rate": round(accepted / attempted, 4) if attempted else None,
    }


def _totals(table: AcceptanceTable) -> dict[str, Any]:
    return {name: _counts(*counts) for name, counts in sorted(table.totals().items())}


def _source(table: AcceptanceTable, name: str) -> dict[str, Any]:
    # [2, num_depth_buckets, num_rank_buckets]
    attempted, accepted = table.counts(name)
    return {
        **_counts(int(attempted.sum()), int(accepted.sum())),
        "by_depth": _buckets("depth", DEPTH_EDGES, attempted.sum(axis=1).tolist(), accepted.sum(axis=1).tolist()),
        "by_rank": _buckets("rank", RANK_EDGES, attempted.sum(axis=0).tolist(), accepted.sum(axis=0).tolist()),
    }


def _buckets(name: str, edges: tuple[int, ...], attempted: list[int], accepted: list[int]) -> list[dict[str, Any]]:
    """Each bucket by its range. Untried buckets are left out."""
    return [
        {name: list(values), **_counts(tries, hits)}
        for values, tries, hits in zip(bucket_ranges(edges), attempted, accepted, strict=True)
        if tries
    ]


def _positions(table: AcceptanceTable) -> list[dict[str, Any]]:
    """By place in the draft, 1 for the token after the anchor: steps that tried one, and those that committed it."""
    pairs = zip(table.attempted_per_position().tolist(), table.accepted_per_position().tolist(), strict=True)
    return [{"position": place, **_counts(tries, hits)} for place, (tries, hits) in enumerate(pairs, 1) if tries]


def _replica(replica: ReplicaView) -> dict[str, Any]:
    report = replica.report
    return {
        "replica_id": report.incarnation.replica_id,
        "incarnation": report.incarnation.id,
        "host": report.incarnation.host,
        "pid": report.incarnation.pid,
        "started_at": report.incarnation.started_at,
        "live": replica.live,
        "healthy": replica.live and report.healthy,
        "last_report_s_ago": round(replica.age_s, 3),
        "reports": report.sequence,
        "sources": _totals(report.acceptance),
        "workload": report.workload,
        "start_text_tokens": report.start_text_tokens,
        "tuning": _tuning(report.tuning),
    }


def _tuning(tuning: TreeTuning) -> dict[str, Any]:
    """What requests of a replica start with, what it is based on, and the shape that trees have under it."""
    return {
        "version": tuning.version,
        "offsets": dict(zip(GROUPS, tuning.offsets, strict=True)),
        "temperature": tuning.temperature,
        "based_on": dict(zip(("cluster", "workload", "own"), tuning.based_on, strict=True)),
        "spine_share": tuning.spine_share,
        "by_depth": [
            {"depth": list(depths), "acceptance": rate, "reached_per_tree": width}
            for depths, rate, width in zip(bucket_ranges(DEPTHS), tuning.acceptance, tuning.width, strict=True)
        ],
    }
