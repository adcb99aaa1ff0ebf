"""Where the keys of a step's sequences stand and who sees them, for all sequences at once. Plain numpy.

What `goose_ray.runner.visibility` does for one sequence costs a decode batch more host time than anything else: a
score of small array operations a sequence. Here it is as many a step, and two or three a sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.tree import BoolArray, FloatArray, IntArray
from goose_ray.engine.step import StepBatch

__all__ = ["KeyLayout", "ancestors"]


@dataclass(frozen=True, slots=True, eq=False)
class KeyLayout:
    """Of S sequences without a window. A sequence's keys are its context's, then those of its own rows."""

    # [sum of keys] int64: slots; sequence i has those from `starts[i]` to `starts[i + 1]`
    slots: IntArray
    starts: Sequence[int]
    # the run of the pool that sequence i reads in place, the slots of others in it masked; None: its keys are gathered
    runs: Sequence[slice | None]
    # [sum of rows * columns] float32, additive; sequence i has a mask [rows, columns] from `mask_starts[i]` on
    masks: FloatArray
    mask_starts: Sequence[int]
    # length of the run, or number of keys
    num_columns: Sequence[int]

    @classmethod
    def of(cls, batch: StepBatch, *, max_span_ratio: float) -> "KeyLayout":
        """A run is read in place if it is at most `max_span_ratio` times as long as the keys are many."""
        first_rows = np.array([step.row_start for step in batch.sequences])
        counts = np.array([step.row_end for step in batch.sequences]) - first_rows
        num_context = np.array([len(step.context_slots) for step in batch.sequences])
        num_keys = num_context + counts
        starts = np.concatenate(([0], np.cumsum(num_keys)))
        # Per row: its place among the keys, and within its sequence.
        rows = np.arange(batch.num_rows)
        own = rows + np.repeat(starts[:-1] + num_context - first_rows, counts)
        is_own = np.zeros(starts[-1], dtype=np.bool_)
        is_own[own] = True
        slots = np.empty(starts[-1], dtype=np.int64)
        slots[own] = batch.slots
        slots[~is_own] = np.concatenate([step.context_slots for step in batch.sequences])

        lowest = np.minimum.reduceat(slots, starts[:-1])
        spans = np.maximum.reduceat(slots, starts[:-1]) + 1 - lowest
        in_place = spans <= num_keys * max_span_ratio
        num_columns = np.where(in_place, spans, num_keys)
        origins = np.where(in_place, lowest, starts[:-1])
        columns = np.where(np.repeat(in_place, num_keys), slots, np.arange(starts[-1])) - np.repeat(origins, num_keys)

        # What every row of a sequence sees, once for each sequence; then once for each row, with its own keys.
        line_starts = np.cumsum(num_columns) - num_columns
        lines = np.full(int(num_columns.sum()), -np.inf, dtype=np.float32)
        lines[(columns + np.repeat(line_starts, num_keys))[~is_own]] = 0.0
        mask_starts = np.concatenate(([0], np.cumsum(counts * num_columns)))
        masks = np.empty(mask_starts[-1], dtype=np.float32)
        ends, widths, places = mask_starts.tolist(), num_columns.tolist(), line_starts.tolist()
        for i, width in enumerate(widths):
            masks[ends[i] : ends[i + 1]].reshape(-1, width)[:] = lines[places[i] : places[i] + width]
        row_starts = np.repeat(mask_starts[:-1] - first_rows * num_columns, counts) + rows * np.repeat(
            num_columns, counts
        )
        seeing, seen = ancestors(batch.parents).nonzero()
        masks[row_starts[seeing] + columns[own[seen]]] = 0.0
        return cls(
            slots=slots,
            starts=starts.tolist(),
            runs=[
                slice(low, low + width) if placed else None
                for low, width, placed in zip(lowest.tolist(), widths, in_place.tolist(), strict=True)
            ],
            masks=masks,
            mask_starts=ends,
            num_columns=widths,
        )


def ancestors(parents: IntArray) -> BoolArray:
    """[T, T] bool: entry (i, j) is true if row j is row i or above it; `parents` [T] are rows, -1 for none.

    Memory and time grow with the square of T: for a few hundred rows.
    """
    num_rows = len(parents)
    # One row more, which sees nothing and to which -1 leads.
    visible = np.eye(num_rows + 1, num_rows, dtype=np.bool_)
    above = np.append(parents, -1)
    # After k rounds a row sees its next 2^k - 1 ancestors.
    while (above >= 0).any():
        visible |= visible[above]
        above = above[above]
    return visible[:num_rows]
