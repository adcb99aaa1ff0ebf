"""The cluster's engine statistics as Prometheus text.

Every metric has a `goose_` name with one series a live replica, and counters have one more, `replica="gone"`, for the
replicas that are no longer there: sums over `replica` never fall. Acceptance by source and depth is the whole cluster's
alone: one series a replica would be hundreds from each. Those that vLLM has too are repeated under vLLM's
name, summed over the replicas, so that its dashboards and benchmark read them unchanged.
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from goose.calibration import DEPTH_EDGES, AcceptanceTable
from goose_ray.engine.stats import EngineStats, Histogram, merge_stats
from goose_ray.telemetry.acceptance_state import ClusterView
from goose_ray.telemetry.bucket_ranges import bucket_ranges
from goose_ray.telemetry.metric_list import DISTRIBUTIONS, SCALARS, Distribution, Scalar
from goose_ray.telemetry.tuning_metrics import tuning_gauges

__all__ = ["METRICS_CONTENT_TYPE", "render_metrics"]

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GONE = "gone"


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
        self._replicas = view.live
        self._acceptance = view.acceptance()

    def collect(self) -> Iterator[Metric]:
        replicas = GaugeMetricFamily("goose_replicas", "Replicas by what is known of them.", labels=["state"])
        replicas.add_metric(["live"], self._num_live)
        replicas.add_metric(["healthy"], self._num_healthy)
        yield replicas
        yield from tuning_gauges(self._replicas, self._model)
        total = merge_stats([stats for _, stats in (*self._live, self._gone)])
        for scalar in SCALARS:
            series = self._live if scalar.gauge else [*self._live, self._gone]
            yield self._scalar(f"goose_{scalar.stem}", scalar, ["replica"], [([name], stats) for name, stats in series])
            if scalar.in_vllm:
                yield self._scalar(f"vllm:{scalar.stem}", scalar, [], [([], total)])
        for distribution in DISTRIBUTIONS:
            labelled = [([name], distribution.histogram(stats)) for name, stats in (*self._live, self._gone)]
            yield self._distribution(f"goose_{distribution.stem}", distribution, ["replica"], labelled)
            summed: list[tuple[list[str], Histogram]] = [([], distribution.histogram(total))]
            yield self._distribution(f"vllm:{distribution.stem}", distribution, [], summed)
        yield from self._by_depth(self._acceptance)

    def _by_depth(self, table: AcceptanceTable) -> Iterator[Metric]:
        depths = [_label(first, last) for first, last in bucket_ranges(DEPTH_EDGES)]
        for row, (what, meaning) in enumerate((("attempted", "whose parent was accepted"), ("accepted", "committed"))):
            family = CounterMetricFamily(
                f"goose_spec_decode_depth_{what}_tokens",
                f"Draft nodes {meaning}, by source and depth below the anchor, of all replicas.",
                labels=["model_name", "source", "depth"],
            )
            for source in table.source_names:
                counts = table.counts(source).sum(axis=2)
                for depth, attempted, count in zip(depths, counts[0].tolist(), counts[row].tolist(), strict=True):
                    if attempted:
                        family.add_metric([self._model, source, depth], count)
            yield family

    def _scalar(
        self, name: str, scalar: Scalar, labels: list[str], series: Iterable[tuple[list[str], EngineStats]]
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
        distribution: Distribution,
        labels: list[str],
        series: Iterable[tuple[list[str], Histogram]],
    ) -> Metric:
        family = HistogramMetricFamily(name, distribution.documentation, labels=["model_name", *labels])
        for label_values, histogram in series:
            family.add_metric([self._model, *label_values], _cumulative(histogram), histogram.sum)
        return family


def _label(first: int, last: int | None) -> str:
    if last is None:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"


def _cumulative(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """Prometheus buckets: (upper bound, observations at or below it), the last one unbounded."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*map(repr, map(float, histogram.bounds)), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets
