"""What one replica keeps and tells for those who look: samples of its counters over time, its trees, Ray's metrics.

Knows neither Serve nor the aggregator.
"""

import time
from collections.abc import Callable

from goose_ray.engine.loop import EngineLoop
from goose_ray.engine.stats import EngineStats
from goose_ray.engine.tree_trace import TreeRecord
from goose_ray.telemetry.dashboard.history import History
from goose_ray.telemetry.dashboard.live import ReplicaLive
from goose_ray.telemetry.ray_metrics import RayMetrics
from goose_ray.telemetry.report import Incarnation

__all__ = ["ReplicaTelemetry"]


class ReplicaTelemetry:
    """`clock` gives unix time."""

    def __init__(
        self, engine: EngineLoop, incarnation: Incarnation, *, model: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._replica_id = incarnation.replica_id
        self._clock = clock
        self._history = History()
        self._ray_metrics = RayMetrics(model=model, replica=incarnation.replica_id)

    def sample(self) -> EngineStats:
        """The engine's statistics of this moment, noted down."""
        stats = self._engine.stats()
        self._history.add(stats, self._clock())
        self._ray_metrics.publish(stats)
        return stats

    def live(self, since: float) -> ReplicaLive:
        """With samples from unix time `since` on."""
        self.sample()
        trees = self._engine.tree_trace()
        return ReplicaLive(self._replica_id, self._history.since(since), trees, self._texts(trees))

    def _texts(self, trees: tuple[TreeRecord, ...]) -> tuple[tuple[str, ...], ...] | None:
        shown = [tree.token_ids for tree in trees if tree.token_ids is not None]
        if not shown:
            return None
        text_of = self._engine.tokenizer.token_bytes
        return tuple(tuple(text_of(token).decode("utf-8", "replace") for token in ids) for ids in shown)
