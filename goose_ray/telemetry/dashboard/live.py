"""What the dashboard shows, as JSON-able data: `GET /v1/goose/live`.

Knows neither where the replicas are asked nor how anything is drawn. No texts are in it, unless the configuration
has the replicas send the tokens of their trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from goose.calibration import DEPTH_EDGES, AcceptanceTable
from goose.sources.registry import SOURCE_NAMES
from goose_ray.engine.tree_trace import TreeRecord
from goose_ray.telemetry.acceptance_state import ClusterView, ReplicaView
from goose_ray.telemetry.bucket_ranges import bucket_ranges
from goose_ray.telemetry.dashboard.history import (
    BUCKET_S,
    HISTORY_S,
    Bucket,
    Sample,
    buckets_of,
    rates_of,
)

__all__ = ["ReplicaLive", "live_view"]

# More than a page shows at a time is not sent, however many replicas there are.
_MAX_TREES = 8


@dataclass(frozen=True, slots=True)
class ReplicaLive:
    """What one replica tells for the dashboard."""

    replica_id: str
    samples: tuple[Sample, ...]
    # oldest first
    trees: tuple[TreeRecord, ...]
    # one text a node of each of `trees`; None where tokens are not to be shown
    texts: tuple[tuple[str, ...], ...] | None = None


def live_view(
    view: ClusterView, replicas: Sequence[ReplicaLive], *, model: str, remembered: bool, since: float, now: float
) -> dict[str, Any]:
    """`since` and `now` are unix times; the history holds the points that began at `since` or later.

    A replica that did not answer has its counters and no rates (null): it is busy or gone.
    """
    by_id = {replica.replica_id: replica for replica in replicas}
    table = view.acceptance()
    # the newest samples are a little old: what ended just now is not wholly covered by them
    whole = now - BUCKET_S
    points = buckets_of([replica.samples for replica in replicas], since=max(since, now - HISTORY_S), until=whole)
    listed = [_replica(replica, by_id.get(replica.report.incarnation.replica_id)) for replica in view.replicas]
    return {
        "object": "goose.live",
        "time": now,
        "model": model,
        "remembered": remembered,
        "period_s": BUCKET_S,
        "history_s": HISTORY_S,
        "cluster": _cluster(view, listed, replicas),
        "source_names": list(SOURCE_NAMES),
        "sources": {name: _source(table, name) for name in table.source_names},
        "history": [_point(point) for point in points],
        "replicas": listed,
        "trees": _trees(replicas),
    }


def _cluster(view: ClusterView, listed: Sequence[dict[str, Any]], replicas: Sequence[ReplicaLive]) -> dict[str, Any]:
    live = [replica for replica in listed if replica["live"]]
    rates = [(rate, tau) for rate, tau in (rates_of(replica.samples) for replica in replicas) if tau]
    # tau is tokens a tree, so replicas count by their trees
    trees = sum(rate / tau for rate, tau in rates if tau)
    tokens = sum(rate for rate, _ in rates)
    return {
        "live": len(view.live),
        "healthy": len(view.healthy),
        "retired": view.retired.num_incarnations,
        **{
            name: sum(replica[name] for replica in live)
            for name in ("running", "waiting", "kv_used", "kv_total", "preemptions")
        },
        "tokens_per_s": round(tokens, 2),
        "tau": round(tokens / trees, 3) if trees else None,
    }


def _replica(replica: ReplicaView, live: ReplicaLive | None) -> dict[str, Any]:
    report = replica.report
    stats = report.stats
    rate, tau = (None, None) if live is None or not replica.live else rates_of(live.samples)
    return {
        "replica_id": report.incarnation.replica_id,
        "host": report.incarnation.host,
        "pid": report.incarnation.pid,
        "started_at": report.incarnation.started_at,
        "live": replica.live,
        "healthy": replica.live and report.healthy,
        "last_report_s_ago": round(replica.age_s, 3),
        "running": stats.num_requests_running,
        "waiting": stats.num_requests_waiting,
        "kv_used": stats.kv_slots_used,
        "kv_total": stats.kv_slots_total,
        "generation_tokens": stats.generation_tokens,
        "preemptions": stats.num_preemptions,
        "tokens_per_s": None if rate is None else round(rate, 2),
        "tau": None if tau is None else round(tau, 3),
    }


def _source(table: AcceptanceTable, name: str) -> dict[str, Any]:
    """Since the cluster began; `by_depth` has [first depth, last depth or null, attempted, accepted]."""
    attempted, accepted = table.counts(name).sum(axis=2)
    buckets = zip(bucket_ranges(DEPTH_EDGES), attempted.tolist(), accepted.tolist(), strict=True)
    return {
        "attempted": int(attempted.sum()),
        "accepted": int(accepted.sum()),
        "by_depth": [[*depths, tries, hits] for depths, tries, hits in buckets if tries],
    }


def _point(bucket: Bucket) -> dict[str, Any]:
    return {
        "t": bucket.start,
        "tokens_per_s": round(bucket.tokens / BUCKET_S, 2),
        "tau": round(bucket.tokens / bucket.trees, 3) if bucket.trees >= 1 else None,
        "sources": {name: [round(count, 1) for count in counts] for name, counts in bucket.sources.items()},
    }


def _trees(replicas: Sequence[ReplicaLive]) -> list[dict[str, Any]]:
    """The newest tree of each replica, then the second newest of each, and so on."""
    newest: list[tuple[int, dict[str, Any]]] = []
    for replica in replicas:
        for age, index in enumerate(reversed(range(len(replica.trees)))):
            tree = replica.trees[index]
            drawn = {
                "replica_id": replica.replica_id,
                "step_id": tree.step_id,
                "parents": list(tree.parents),
                "sources": list(tree.sources),
                "probs": [round(prob, 4) for prob in tree.probs],
                "accepted": list(tree.accepted),
                "texts": None if replica.texts is None else list(replica.texts[index]),
            }
            newest.append((age, drawn))
    newest.sort(key=lambda entry: entry[0])
    return [drawn for _, drawn in newest[:_MAX_TREES]]
