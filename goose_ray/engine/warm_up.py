"""Measures what steps of a runner take, before it serves: the first guess of the cost model, and the runner warm.

Runs forwards of its own in KV slots that nobody owns yet, so neither the engine's counts nor anything learned from
requests is touched. What drafting adds to a step is learned later, from the steps themselves.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from goose.cost import CostModel, StepShape
from goose.tree import IntArray, TokenTree
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import ModelRunner, SequenceStep, StepBatch
from goose_ray.engine.step_cost import shape_of
from goose_ray.errors import EngineDeadError

__all__ = ["measure_cost"]

# Tokens of the long context and of each of the short ones, and how many of those at most.
_LONG, _SHORT, _MOST_SHORT = 256, 16, 16
# Rows of one sequence, those that say most first: on a busy machine there may be no time for more.
_ROWS = (1, 8, 64, 2, 16, 4, 32, 12, 3, 24, 6, 48)
# Sequences of a short context, and nodes of each.
_SHARED = ((1, 1), (1, 24), (16, 1), (1, 4), (4, 4), (16, 3))
_MOST_ROUNDS, _LEAST_BATCHES = 8, 3
_SAMPLING = SamplingParams(max_tokens=2, temperature=0.0)
_TOKEN = 1


@dataclass(frozen=True, slots=True)
class _Probe:
    """A sequence made up for measuring; its last token is the anchor."""

    request_id: str
    # [num_tokens - 1] int64
    context_slots: IntArray


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
        # The first of its kind is left out where there are others: the runner may prepare itself for a new size.
        model.observe(shape, median(seconds[shape][1:] or seconds[shape]))
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
            _Probe(f"warm-up-{i}", np.arange(end - length, end))
            for i, (end, length) in enumerate(zip(ends.tolist(), lengths, strict=True))
        )
        # Slots from here on are for the rows that are measured.
        self._free = int(ends[-1])
        self._max_rows = min(max_rows, spec.num_slots - self._free)

    def prefill(self) -> None:
        """Computes the contexts."""
        for start in range(0, len(self._long.context_slots), self._max_rows):
            self.run(self._chains([self._long], start, self._max_rows))
        together = max(1, self._max_rows // _SHORT)
        for first in range(0, len(self._short), together):
            probes = self._short[first : first + together]
            length = len(probes[0].context_slots)
            for start in range(0, length, self._max_rows):
                self.run(self._chains(probes, start, self._max_rows))

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

    def _chains(self, probes: Sequence[_Probe], start: int, count: int) -> StepBatch:
        """Prefill of the next `count` tokens of each."""
        steps, parents, positions = [], [], []
        row = 0
        for probe in probes:
            slots = probe.context_slots[start : start + count]
            steps.append(self._step(probe, row, row + len(slots), len(slots), probe.context_slots[:start], None))
            chain = np.arange(len(slots))
            parents.append(np.where(chain == 0, -1, row + chain - 1))
            positions.append(start + chain)
            row += len(slots)
        slots = np.concatenate([probe.context_slots[start : start + count] for probe in probes])
        return self._batch(steps, parents, positions, slots)

    def _trees(self, probes: Sequence[_Probe], num_nodes: int) -> Iterator[StepBatch]:
        """One batch, if it fits: a tree of `num_nodes` for each, all drafts below the anchor."""
        total = num_nodes * len(probes)
        if total > self._max_rows:
            return
        tree = TokenTree.from_parents([_TOKEN] * num_nodes, [-1] + [0] * (num_nodes - 1))
        steps, parents, positions = [], [], []
        for i, probe in enumerate(probes):
            first = i * num_nodes
            steps.append(self._step(probe, first, first + num_nodes, 1, probe.context_slots, tree))
            parents.append(np.where(tree.parents < 0, -1, first + tree.parents))
            positions.append(len(probe.context_slots) + tree.depths)
        yield self._batch(steps, parents, positions, self._free + np.arange(total))

    def _step(
        self, probe: _Probe, start: int, end: int, num_chain: int, context_slots: IntArray, tree: TokenTree | None
    ) -> SequenceStep:
        return SequenceStep(
            request_id=probe.request_id,
            row_start=start,
            row_end=end,
            num_chain=num_chain,
            context_slots=context_slots,
            tree=tree,
            sampling=_SAMPLING,
            output_position=0,
            harvest_chain=False,
        )

    def _batch(
        self, steps: Sequence[SequenceStep], parents: list[IntArray], positions: list[IntArray], slots: IntArray
    ) -> StepBatch:
        return StepBatch(
            step_id=0,
            token_ids=np.full(len(slots), _TOKEN),
            positions=np.concatenate(positions),
            slots=slots,
            parents=np.concatenate(parents),
            sequences=tuple(steps),
            harvest_k=self._harvest_k,
        )
