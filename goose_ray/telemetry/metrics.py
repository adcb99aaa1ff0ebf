"""The cluster's engine statistics as Prometheus text.

Every metric has a `goose_` name with one series a live replica, and counters have one more, `replica="gone"`, for the
replicas that are no longer there: sums over `replica` never fall. Those that vLLM has too are repeated under vLLM's
name, summed over the replicas, so that its dashboards and benchmark read them unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from goose_ray.engine.stats import EngineStats, Histogram, merge_stats
from goose_ray.telemetry.acceptance_state import ClusterView

__all__ = ["METRICS_CONTENT_TYPE", "render_metrics"]

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GONE = "gone"

# Label values of the metric's own label (the empty string where it has none) to values.
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Scalar:
    """A gauge or counter: `label` is the name of its own label, if it has one."""

    stem: str
    documentation: str
    values: Callable[[EngineStats], Values]
    label: str | None = None
    gauge: bool = False
    in_vllm: bool = False


@dataclass(frozen=True, slots=True)
class _Distribution:
    """A histogram; vLLM has all of them."""

    stem: str
    documentation: str
    histogram: Callable[[EngineStats], Histogram]


def _one(value: float) -> Values:
    return {"": value}


def _kv_usage(stats: EngineStats) -> Values:
    return _one(stats.kv_slots_used / stats.kv_slots_total if stats.kv_slots_total else 0.0)


_SCALARS = (
    _Scalar(
        "num_requests_running",
        "Sequences in the running batch.",
        lambda s: _one(s.num_requests_running),
        gauge=True,
        in_vllm=True,
    ),
    _Scalar(
        "num_requests_waiting",
        "Requests waiting in the engine's queue.",
        lambda s: _one(s.num_requests_waiting),
        gauge=True,
        in_vllm=True,
    ),
    _Scalar(
        "kv_cache_usage_perc",
        "Share of KV slots that running sequences hold, 0 to 1.",
        _kv_usage,
        gauge=True,
        in_vllm=True,
    ),
    _Scalar(
        "kv_slots_used",
        "KV slots that running sequences hold, one a token.",
        lambda s: _one(s.kv_slots_used),
        gauge=True,
    ),
    _Scalar("kv_slots_total", "KV slots of the pool.", lambda s: _one(s.kv_slots_total), gauge=True),
    _Scalar(
        "prompt_tokens",
        "Prompt tokens of requests whose prompt is computed or was cached.",
        lambda s: _one(s.prompt_tokens),
        in_vllm=True,
    ),
    _Scalar(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: _one(s.prefix_cache_queries),
        in_vllm=True,
    ),
    _Scalar(
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda s: _one(s.prefix_cache_hits),
        in_vllm=True,
    ),
    _Scalar("generation_tokens", "Tokens delivered.", lambda s: _one(s.generation_tokens), in_vllm=True),
    _Scalar("num_preemptions", "Sequences evicted under KV pressure.", lambda s: _one(s.num_preemptions), in_vllm=True),
    _Scalar("steps", "Batched forwards.", lambda s: _one(s.num_steps)),
    _Scalar("step_rows", "Rows of all batched forwards.", lambda s: _one(s.num_rows)),
    _Scalar("forward_seconds", "Wall time in forward and verification.", lambda s: _one(s.forward_seconds)),
    _Scalar("step_seconds", "Wall time of steps, drafting included.", lambda s: _one(s.step_seconds)),
    _Scalar(
        "predicted_step_seconds",
        "Predicted wall time of steps, where the budget is automatic.",
        lambda s: _one(s.predicted_step_seconds),
    ),
    _Scalar(
        "step_error_seconds",
        "Sum over steps of the distance between predicted and observed wall time.",
        lambda s: _one(s.step_error_seconds),
    ),
    _Scalar(
        "request_success",
        "Finished requests.",
        lambda s: {str(reason): count for reason, count in s.finished_by_reason.items()},
        label="finished_reason",
        in_vllm=True,
    ),
    _Scalar(
        "spec_decode_num_drafts",
        "Trees verified that held a draft node.",
        lambda s: _one(s.num_drafts),
        in_vllm=True,
    ),
    _Scalar(
        "spec_decode_num_draft_tokens",
        "Draft nodes verified.",
        lambda s: _one(s.num_draft_tokens),
        in_vllm=True,
    ),
    _Scalar(
        "spec_decode_num_accepted_tokens",
        "Draft tokens committed.",
        lambda s: _one(s.num_accepted_tokens),
        in_vllm=True,
    ),
    _Scalar(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens committed, by their place in the draft.",
        lambda s: {str(place): count for place, count in enumerate(s.accepted_per_position)},
        label="position",
        in_vllm=True,
    ),
    _Scalar(
        "spec_decode_source_attempted_tokens",
        "Draft nodes of a source whose parent was accepted.",
        lambda s: {name: counts.attempted for name, counts in s.by_source.items()},
        label="source",
    ),
    _Scalar(
        "spec_decode_source_accepted_tokens",
        "Draft nodes of a source that were committed.",
        lambda s: {name: counts.accepted for name, counts in s.by_source.items()},
        label="source",
    ),
    _Scalar("spec_decode_draft_errors", "Steps in which drafting failed.", lambda s: _one(s.num_draft_errors)),
)

_DISTRIBUTIONS = (
    _Distribution("time_to_first_token_seconds", "Arrival to first token.", lambda s: s.ttft_seconds),
    _Distribution("inter_token_latency_seconds", "Between tokens.", lambda s: s.inter_token_seconds),
    _Distribution("e2e_request_latency_seconds", "Arrival to the end of the answer.", lambda s: s.e2e_seconds),
)


def render_metrics(view: ClusterView, model: str) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ViewCollector(view, model))
    return generate_latest(registry).decode()


class _ViewCollector(Collector):
    """One scrape."""

    def __init__(self, view: ClusterView, model: str) -> None:
        self._model = model
        self._live = [(replica.report.incarnation.replica_id, replica.report.stats) for replica in view.live]
        self._gone = (_GONE, view.gone())
        self._num_live, self._num_healthy = len(view.live), len(view.healthy)

    def collect(self) -> Iterator[Metric]:
        replicas = GaugeMetricFamily("goose_replicas", "Replicas by what is known of them.", labels=["state"])
        replicas.add_metric(["live"], self._num_live)
        replicas.add_metric(["healthy"], self._num_healthy)
        yield replicas
        total = merge_stats([stats for _, stats in (*self._live, self._gone)])
        for scalar in _SCALARS:
            series = self._live if scalar.gauge else [*self._live, self._gone]
            yield self._scalar(f"goose_{scalar.stem}", scalar, ["replica"], [([name], stats) for name, stats in series])
            if scalar.in_vllm:
                yield self._scalar(f"vllm:{scalar.stem}", scalar, [], [([], total)])
        for distribution in _DISTRIBUTIONS:
            labelled = [([name], distribution.histogram(stats)) for name, stats in (*self._live, self._gone)]
            yield self._distribution(f"goose_{distribution.stem}", distribution, ["replica"], labelled)
            summed: list[tuple[list[str], Histogram]] = [([], distribution.histogram(total))]
            yield self._distribution(f"vllm:{distribution.stem}", distribution, [], summed)

    def _scalar(
        self, name: str, scalar: _Scalar, labels: list[str], series: Iterable[tuple[list[str], EngineStats]]
    ) -> Metric:
        names = ["model_name", *labels, *([scalar.label] if scalar.label else [])]
        kind = GaugeMetricFamily if scalar.gauge else CounterMetricFamily
        family = kind(name, scalar.documentation, labels=names)
        for label_values, stats in series:
            for own, value in scalar.values(stats).items():
                family.add_metric([self._model, *label_values, *([own] if scalar.label else [])], value)
        return family

    def _distribution(
        self,
        name: str,
        distribution: _Distribution,
        labels: list[str],
        series: Iterable[tuple[list[str], Histogram]],
    ) -> Metric:
        family = HistogramMetricFamily(name, distribution.documentation, labels=["model_name", *labels])
        for label_values, histogram in series:
            family.add_metric([self._model, *label_values], _cumulative(histogram), histogram.sum)
        return family


def _cumulative(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """Prometheus buckets: (upper bound, observations at or below it), the last one unbounded."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*map(repr, map(float, histogram.bounds)), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets
