"""Measures what steps of a runner take, before it serves: the first guess of the cost model, and the runner warm.

Runs forwards of its own in KV slots that nobody owns yet, so neither the engine's counts nor anything learned from
requests is touched. What drafting adds to a step is learned later, from the steps themselves.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from goose.cost import CostModel, StepShape
from goose_ray.engine.probes import Probe, chain_batch, tree_batch
from goose_ray.engine.step import ModelRunner, StepBatch
from goose_ray.engine.step_cost import shape_of
from goose_ray.errors import EngineDeadError

__all__ = ["measure_cost"]

# Tokens of the long context and of each of the short ones, and how many of those at most.
_LONG, _SHORT, _MOST_SHORT = 256, 16, 16
# Rows of one sequence, those that say most first: on a busy machine there may be no time for more.
_ROWS = (1, 8, 64, 2, 16, 4, 32, 12, 3, 24, 6, 48)
# Sequences of a short context, and nodes of each.
_SHARED = ((1, 1), (1, 24), (16, 1), (16, 2), (1, 4), (4, 4), (12, 2), (16, 3))
_MOST_ROUNDS, _LEAST_BATCHES = 8, 3


def measure_cost(
    runner: ModelRunner,
    *,
    max_rows: int,
    max_sequences: int,
    harvest_k: int,
    max_seconds: float = 8.0,
    stall_timeout_s: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> CostModel:
    """A cost model of steps of up to `max_rows` rows, from about `max_seconds` of forwards and at least three of them.

    Overwrites KV slots, so no sequence may be in the pool. Raises EngineDeadError if a forward takes longer than
    `stall_timeout_s`, and what the runner raises.
    """
    end = clock() + max_seconds
    measuring = _Measuring(runner, max_rows, max_sequences, harvest_k, stall_timeout_s, clock)
    measuring.prefill()
    seconds: dict[StepShape, list[float]] = {}
    for number, batch in enumerate(measuring.batches()):
        if number >= _LEAST_BATCHES and clock() > end:
            break
        seconds.setdefault(shape_of(batch), []).append(measuring.run(batch))
    model = CostModel(max_rows=max_rows)
    for shape in sorted(seconds, key=lambda shape: shape.rows):
        # The least: what else a machine does only adds to it, and a size that looks dear is not tried again soon.
        model.observe(shape, min(seconds[shape]))
    return model


class _Measuring:
    def __init__(
        self,
        runner: ModelRunner,
        max_rows: int,
        max_sequences: int,
        harvest_k: int,
        stall_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        spec = runner.spec
        self._runner, self._harvest_k = runner, harvest_k
        self._stall_timeout_s, self._clock = stall_timeout_s, clock
        num_long = max(1, min(_LONG, spec.num_slots // 4, spec.max_model_len - 2))
        num_short = max(1, min(_SHORT, spec.max_model_len - 2))
        count = min(_MOST_SHORT, max_sequences, max_rows, spec.num_slots // 4 // num_short)
        lengths = [num_long, *[num_short] * count]
        ends = np.cumsum(lengths)
        self._long, *self._short = (
            Probe(f"warm-up-{i}", np.arange(end - length, end))
            for i, (end, length) in enumerate(zip(ends.tolist(), lengths, strict=True))
        )
        # Slots from here on are for the rows that are measured.
        self._free = int(ends[-1])
        self._max_rows = min(max_rows, spec.num_slots - self._free)

    def prefill(self) -> None:
        """Computes the contexts."""
        for start in range(0, len(self._long.context_slots), self._max_rows):
            self.run(chain_batch([self._long], start, self._max_rows, harvest_k=self._harvest_k))
        together = max(1, self._max_rows // _SHORT)
        for first in range(0, len(self._short), together):
            probes = self._short[first : first + together]
            length = len(probes[0].context_slots)
            for start in range(0, length, self._max_rows):
                self.run(chain_batch(probes, start, self._max_rows, harvest_k=self._harvest_k))

    def batches(self) -> Iterator[StepBatch]:
        """Round after round of steps of few rows; in the second also large ones, which differ less."""
        for number in range(_MOST_ROUNDS):
            for rows in _ROWS:
                yield from self._trees([self._long], rows)
            for count, num_nodes in _SHARED:
                if self._short:
                    yield from self._trees(self._short[:count], num_nodes)
            if number == 1:
                rows = 2 * max(_ROWS)
                while rows <= self._max_rows:
                    yield from self._trees([self._long], rows)
                    rows *= 2

    def run(self, batch: StepBatch) -> float:
        """Seconds of one forward."""
        started_s = self._clock()
        self._runner.execute(batch)
        taken = self._clock() - started_s
        if taken > self._stall_timeout_s:
            raise EngineDeadError(f"a forward of {batch.num_rows} rows took {taken:.0f} s while warming up")
        return taken

    def _trees(self, probes: Sequence[Probe], num_nodes: int) -> Iterator[StepBatch]:
        """One batch, if it fits."""
        total = num_nodes * len(probes)
        if total <= self._max_rows:
            yield tree_batch(probes, num_nodes, self._free + np.arange(total), harvest_k=self._harvest_k)
