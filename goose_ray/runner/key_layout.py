"""Where the keys of a step's sequences stand and who sees them, for all sequences at once.

What `goose_ray.runner.visibility` does for one sequence costs a decode batch more host time than anything else: a
score of small array operations a sequence. Here it is two compiled functions a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.jit import jit, writable
from goose.tree import BoolArray, FloatArray, IntArray
from goose_ray.engine.step import StepBatch

__all__ = ["KeyLayout"]


@dataclass(frozen=True, slots=True, eq=False)
class KeyLayout:
    """Of S sequences without a window. A sequence's keys are its context's, then those of its own rows."""

    # the run of the pool that sequence i reads in place, the slots of others in it masked; None: its keys are gathered
    runs: Sequence[slice | None]
    # [sum of gathered keys] int64: slots; of sequence i those from `starts[i]` to `starts[i + 1]`, none if it has a run
    slots: IntArray
    starts: Sequence[int]
    # [sum of rows * columns] float32, additive: of each sequence a mask [rows, columns]
    masks: FloatArray
    # length of the run, or number of keys
    num_columns: Sequence[int]

    @classmethod
    def of(cls, batch: StepBatch, *, max_span_ratio: float) -> "KeyLayout":
        """A run is read in place if it is at most `max_span_ratio` times as long as the keys are many."""
        contexts = np.concatenate([step.context_slots for step in batch.sequences])
        row_starts = np.array([*(step.row_start for step in batch.sequences), batch.num_rows])
        context_starts = np.cumsum([0, *(len(step.context_slots) for step in batch.sequences)])
        row_slots, parents = writable(batch.slots, np.int64), writable(batch.parents, np.int64)
        extremes = np.empty((2, len(batch.sequences)), dtype=np.int64)
        _find_extremes(row_slots, row_starts, contexts, context_starts, extremes)

        counts = np.diff(row_starts)
        spans, num_keys = extremes[1] + 1 - extremes[0], np.diff(context_starts) + counts
        in_place = spans <= num_keys * max_span_ratio
        num_columns = np.where(in_place, spans, num_keys)
        gathered = np.where(in_place, 0, num_keys)
        slots = np.empty(int(gathered.sum()), dtype=np.int64)
        masks = np.empty(int((counts * num_columns).sum()), dtype=np.float32)
        _fill(
            parents, row_slots, row_starts, contexts, context_starts, extremes[0], in_place, num_columns, slots, masks
        )
        widths = num_columns.tolist()
        return cls(
            runs=[
                slice(low, low + width) if placed else None
                for low, width, placed in zip(extremes[0].tolist(), widths, in_place.tolist(), strict=True)
            ],
            slots=slots,
            starts=[0, *np.cumsum(gathered).tolist()],
            masks=masks,
            num_columns=widths,
        )


@jit
def _find_extremes(
    row_slots: IntArray, row_starts: IntArray, contexts: IntArray, context_starts: IntArray, extremes: IntArray
) -> None:
    """extremes [2, num_sequences]: the lowest and the highest slot of every sequence, its rows' and its context's."""
    for i in range(extremes.shape[1]):
        low = high = row_slots[row_starts[i]]
        for row in range(row_starts[i], row_starts[i + 1]):
            low, high = min(low, row_slots[row]), max(high, row_slots[row])
        for place in range(context_starts[i], context_starts[i + 1]):
            low, high = min(low, contexts[place]), max(high, contexts[place])
        extremes[0, i], extremes[1, i] = low, high


@jit
def _fill(
    parents: IntArray,
    row_slots: IntArray,
    row_starts: IntArray,
    contexts: IntArray,
    context_starts: IntArray,
    lowest: IntArray,
    in_place: BoolArray,
    num_columns: IntArray,
    slots: IntArray,
    masks: FloatArray,
) -> None:
    """Writes `slots` and `masks`. A row sees the context, itself and what its parent sees."""
    line = gathered = 0
    for i in range(len(num_columns)):
        first, width = row_starts[i], num_columns[i]
        num_context = context_starts[i + 1] - context_starts[i]
        for row in range(first, row_starts[i + 1]):
            if parents[row] >= 0:
                above = line - (row - parents[row]) * width
                for column in range(width):
                    masks[line + column] = masks[above + column]
            else:
                for column in range(width):
                    masks[line + column] = -np.inf
                for k in range(num_context):
                    masks[line + (contexts[context_starts[i] + k] - lowest[i] if in_place[i] else k)] = 0.0
            masks[line + (row_slots[row] - lowest[i] if in_place[i] else num_context + row - first)] = 0.0
            line += width
        if not in_place[i]:
            for k in range(num_context):
                slots[gathered + k] = contexts[context_starts[i] + k]
            for row in range(first, row_starts[i + 1]):
                slots[gathered + num_context + row - first] = row_slots[row]
            gathered += num_context + row_starts[i + 1] - first
