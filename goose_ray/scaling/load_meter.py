"""What a replica tells the autoscaler of itself: how much it does, and how much it could do at most.

Capacity is measured, not configured. A step of r rows takes about a + b r seconds; both follow the engine's own
counters by least squares that forget. With the tree size, the acceptance and the prompt rows of the traffic of the
moment that gives the tokens a second of a full batch. Knows an engine's statistics; knows neither Serve nor why anyone
scales.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from goose_ray.config import EngineConfig
from goose_ray.engine.stats import EngineStats
from goose_ray.scaling.policy import Load

__all__ = ["LoadMeter"]

# Rates are those of the last so many seconds, at least.
_WINDOW_S = 5.0
# Steps after which what was seen of durations and of the traffic weighs half.
_HALF_LIFE_STEPS = 1000.0
# As long as steps of one size alone were seen: so many rows make a step twice as long. Weight against what was seen.
_DOUBLING_ROWS, _PRIOR_WEIGHT = 64.0, 1e-6


@dataclass(frozen=True, slots=True)
class _Moment:
    at_s: float
    stats: EngineStats


class LoadMeter:
    def __init__(self, config: EngineConfig) -> None:
        self._max_running = config.max_running_requests
        self._max_rows = config.max_batch_rows
        self._moments: deque[_Moment] = deque()
        # [2, 2] and [2]: of the least squares for a and b
        self._squares = np.zeros((2, 2))
        self._products = np.zeros(2)
        # decayed sums: trees, their nodes with anchors, tokens, rows that are no trees'
        self._traffic = np.zeros(4)

    def measure(self, stats: EngineStats, now_s: float) -> Load:
        """`stats` are those of `now_s`, on a clock that only goes forward."""
        if self._moments:
            self._learn(self._moments[-1].stats, stats)
        self._moments.append(_Moment(now_s, stats))
        while len(self._moments) > 2 and now_s - self._moments[1].at_s >= _WINDOW_S:
            self._moments.popleft()
        first = self._moments[0]
        seconds = now_s - first.at_s
        tokens = stats.generation_tokens - first.stats.generation_tokens
        finished = sum(stats.finished_by_reason.values()) - sum(first.stats.finished_by_reason.values())
        return Load(
            requests=stats.num_requests_running + stats.num_requests_waiting,
            waiting=stats.num_requests_waiting,
            finished_per_s=finished / seconds if seconds else 0.0,
            kv_use=stats.kv_slots_used / max(1, stats.kv_slots_total),
            tokens_per_s=tokens / seconds if seconds else 0.0,
            capacity_tokens_per_s=self._capacity(stats),
        )

    def _learn(self, before: EngineStats, after: EngineStats) -> None:
        steps = after.num_steps - before.num_steps
        if not steps:
            return
        rows = after.num_rows - before.num_rows
        trees = after.num_trees - before.num_trees
        nodes = trees + after.num_draft_tokens - before.num_draft_tokens
        tokens = after.generation_tokens - before.generation_tokens
        kept = 0.5 ** (steps / _HALF_LIFE_STEPS)
        size, took = np.array([1.0, rows / steps]), (after.step_seconds - before.step_seconds) / steps
        self._squares = kept * self._squares + steps * np.outer(size, size)
        self._products = kept * self._products + steps * took * size
        self._traffic = kept * self._traffic + (trees, nodes, tokens, max(0, rows - nodes))

    def _durations(self) -> tuple[float, float]:
        """Seconds of a step, and of each of its rows; neither is negative."""
        away = np.array([1.0, -_DOUBLING_ROWS])
        squares = self._squares + _PRIOR_WEIGHT * self._squares[0, 0] * np.outer(away, away)
        step_s, row_s = np.linalg.solve(squares, self._products)
        if row_s < 0:
            return float(self._products[0] / self._squares[0, 0]), 0.0
        if step_s < 0:
            return 0.0, float(self._products[1] / self._squares[1, 1])
        return float(step_s), float(row_s)

    def _capacity(self, stats: EngineStats) -> float:
        trees, nodes, tokens, other_rows = self._traffic.tolist()
        if not trees or not tokens:
            return 0.0
        step_s, row_s = self._durations()
        most = self._max_running
        if stats.num_requests_running and stats.kv_slots_used:
            # as many as have room if all are as long as those that run
            most = min(most, stats.kv_slots_total * stats.num_requests_running // stats.kv_slots_used)
        best = 0.0
        # With these trees, or with none: an automatic budget makes them smaller as the batch grows.
        for nodes_each, tokens_each in ((nodes / trees, tokens / trees), (1.0, 1.0)):
            for sequences in range(1, max(1, most) + 1):
                rows = sequences * (nodes_each + tokens_each * other_rows / tokens)
                seconds = step_s * max(1.0, rows / self._max_rows) + row_s * rows
                best = max(best, sequences * tokens_each / seconds) if seconds > 0 else best
        return best
