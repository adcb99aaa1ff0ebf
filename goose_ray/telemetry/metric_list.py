"""The metrics of an engine: their names, their meaning, and where in its statistics they stand.

Knows no sink: `metrics` writes them as Prometheus text for the cluster, `ray_metrics` hands a replica's to Ray.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from goose_ray.engine.stats import EngineStats, Histogram

__all__ = ["DISTRIBUTIONS", "SCALARS", "Distribution", "Scalar", "Values"]

# Label values of the metric's own label (the empty string where it has none) to values.
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A gauge or counter: `label` is the name of its own label, if it has one."""

    stem: str
    documentation: str
    values: Callable[[EngineStats], Values]
    label: str | None = None
    gauge: bool = False
    in_vllm: bool = False


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram; vLLM has all of them."""

    stem: str
    documentation: str
    histogram: Callable[[EngineStats], Histogram]


def _one(value: float) -> Values:
    return {"": value}


def _kv_usage(stats: EngineStats) -> Values:
    return _one(stats.kv_slots_used / stats.kv_slots_total if stats.kv_slots_total else 0.0)


SCALARS = (
    Scalar(
        "num_requests_running",
        "Sequences in the running batch.",
        lambda s: _one(s.num_requests_running),
        gauge=True,
        in_vllm=True,
    ),
    Scalar(
        "num_requests_waiting",
        "Requests waiting in the engine's queue.",
        lambda s: _one(s.num_requests_waiting),
        gauge=True,
        in_vllm=True,
    ),
    Scalar(
        "kv_cache_usage_perc",
        "Share of KV slots that running sequences hold, 0 to 1.",
        _kv_usage,
        gauge=True,
        in_vllm=True,
    ),
    Scalar(
        "kv_slots_used",
        "KV slots that running sequences hold, one a token.",
        lambda s: _one(s.kv_slots_used),
        gauge=True,
    ),
    Scalar("kv_slots_total", "KV slots of the pool.", lambda s: _one(s.kv_slots_total), gauge=True),
    Scalar(
        "prompt_tokens",
        "Prompt tokens of requests whose prompt is computed or was cached.",
        lambda s: _one(s.prompt_tokens),
        in_vllm=True,
    ),
    Scalar(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: _one(s.prefix_cache_queries),
        in_vllm=True,
    ),
    Scalar(
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda s: _one(s.prefix_cache_hits),
        in_vllm=True,
    ),
    Scalar("generation_tokens", "Tokens delivered.", lambda s: _one(s.generation_tokens), in_vllm=True),
    Scalar("num_preemptions", "Sequences evicted under KV pressure.", lambda s: _one(s.num_preemptions), in_vllm=True),
    Scalar("steps", "Batched forwards.", lambda s: _one(s.num_steps)),
    Scalar("step_rows", "Rows of all batched forwards.", lambda s: _one(s.num_rows)),
    Scalar("forward_seconds", "Wall time in forward and verification.", lambda s: _one(s.forward_seconds)),
    Scalar("step_seconds", "Wall time of steps, drafting included.", lambda s: _one(s.step_seconds)),
    Scalar(
        "predicted_step_seconds",
        "Predicted wall time of steps, where the budget is automatic.",
        lambda s: _one(s.predicted_step_seconds),
    ),
    Scalar(
        "step_error_seconds",
        "Sum over steps of the distance between predicted and observed wall time.",
        lambda s: _one(s.step_error_seconds),
    ),
    Scalar(
        "request_success",
        "Finished requests.",
        lambda s: {str(reason): count for reason, count in s.finished_by_reason.items()},
        label="finished_reason",
        in_vllm=True,
    ),
    Scalar("spec_decode_num_trees", "Trees verified, anchors alone among them.", lambda s: _one(s.num_trees)),
    Scalar(
        "spec_decode_num_drafts",
        "Trees verified that held a draft node.",
        lambda s: _one(s.num_drafts),
        in_vllm=True,
    ),
    Scalar(
        "spec_decode_num_draft_tokens",
        "Draft nodes verified.",
        lambda s: _one(s.num_draft_tokens),
        in_vllm=True,
    ),
    Scalar(
        "spec_decode_num_accepted_tokens",
        "Draft tokens committed.",
        lambda s: _one(s.num_accepted_tokens),
        in_vllm=True,
    ),
    Scalar(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens committed, by their place in the draft.",
        lambda s: {str(place): count for place, count in enumerate(s.accepted_per_position)},
        label="position",
        in_vllm=True,
    ),
    Scalar(
        "spec_decode_source_attempted_tokens",
        "Draft nodes of a source whose parent was accepted.",
        lambda s: {name: counts.attempted for name, counts in s.by_source.items()},
        label="source",
    ),
    Scalar(
        "spec_decode_source_accepted_tokens",
        "Draft nodes of a source that were committed.",
        lambda s: {name: counts.accepted for name, counts in s.by_source.items()},
        label="source",
    ),
    Scalar("spec_decode_draft_errors", "Steps in which drafting failed.", lambda s: _one(s.num_draft_errors)),
)

DISTRIBUTIONS = (
    Distribution("request_queue_time_seconds", "Arrival to a place in the batch.", lambda s: s.queue_seconds),
    Distribution("time_to_first_token_seconds", "Arrival to first token.", lambda s: s.ttft_seconds),
    Distribution("inter_token_latency_seconds", "Between tokens.", lambda s: s.inter_token_seconds),
    Distribution("e2e_request_latency_seconds", "Arrival to the end of the answer.", lambda s: s.e2e_seconds),
)
