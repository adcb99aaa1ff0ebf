"""What others may know of a running engine: copies that its thread replaces whole between two steps."""

from collections.abc import Callable

from goose.calibration import AcceptanceTable
from goose.tuning_counts import TuningCounts
from goose_ray.engine.engine import Engine
from goose_ray.engine.stats import EngineStats

__all__ = ["EngineSnapshots"]

# How old what is learned of acceptance may be while steps follow one another.
_PERIOD_S = 0.5


class EngineSnapshots:
    """`take` belongs to the engine's thread; reading, to any."""

    # as of the last step or cancellation
    stats: EngineStats
    # at most half a second old; current when nothing runs
    acceptance: AcceptanceTable
    # as old as that
    tuning_counts: TuningCounts

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._learned_s = float("-inf")
        self.take()

    def take(self) -> None:
        self.stats = self._engine.stats()
        now_s = self._clock()
        if not self._engine.has_work or now_s - self._learned_s > _PERIOD_S:
            self.acceptance = self._engine.acceptance()
            self.tuning_counts = self._engine.learning.counts()
            self._learned_s = now_s
