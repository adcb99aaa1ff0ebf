"""A replica's gauges and counters as Ray's own metrics, so that they stand beside Ray's on its Prometheus endpoints.

There their names begin with `ray_`. Histograms stay out: Ray takes observations one by one, and the engine has sums.
"""

from collections.abc import Sequence

from ray.util.metrics import Counter, Gauge

from goose_ray.engine.stats import EngineStats
from goose_ray.telemetry.metric_list import SCALARS, Scalar

__all__ = ["RayMetrics"]


class RayMetrics:
    """Outside Ray, what is published goes nowhere."""

    def __init__(self, *, model: str, replica: str, scalars: Sequence[Scalar] = SCALARS) -> None:
        self._tags = {"model_name": model, "replica": replica}
        self._metrics: list[tuple[Scalar, Gauge | Counter]] = []
        for scalar in scalars:
            kind = Gauge if scalar.gauge else Counter
            tag_keys = (*self._tags, *([scalar.label] if scalar.label else []))
            metric = kind(f"goose_{scalar.stem}", description=scalar.documentation, tag_keys=tag_keys)
            self._metrics.append((scalar, metric))
        # counter and its own label -> what it was last told
        self._told: dict[tuple[str, str], float] = {}

    def publish(self, stats: EngineStats) -> None:
        for scalar, metric in self._metrics:
            for own, value in scalar.values(stats).items():
                tags = {**self._tags, **({scalar.label: own} if scalar.label else {})}
                if isinstance(metric, Gauge):
                    metric.set(value, tags)
                    continue
                added = value - self._told.get((scalar.stem, own), 0)
                if added > 0:
                    self._told[scalar.stem, own] = value
                    metric.inc(added, tags)
