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
        contexts = [step.context_slots for step in batch.sequences]
        num_context = np.array([len(context) for context in contexts])
        first_rows = np.array([step.row_start for step in batch.sequences])
        counts = np.diff(first_rows, append=batch.num_rows)
        of_contexts = np.concatenate(contexts)
        lowest, highest = _extremes(batch.slots, first_rows, of_contexts, num_context)
        spans, num_keys = highest + 1 - lowest, num_context + counts
        in_place = spans <= num_keys * max_span_ratio
        num_columns = np.where(in_place, spans, num_keys)

        # What every row of a sequence sees, once for each sequence.
        line_starts = np.cumsum(num_columns) - num_columns
        lines = np.full(int(num_columns.sum()), -np.inf, dtype=np.float32)
        shifts, others = line_starts - lowest, np.flatnonzero(~in_place).tolist()
        widths, places = num_columns.tolist(), line_starts.tolist()
        if not others:
            lines[of_contexts + np.repeat(shifts, num_context)] = 0.0
        else:
            placed = np.repeat(in_place, num_context)
            lines[of_contexts[placed] + np.repeat(shifts, np.where(in_place, num_context, 0))] = 0.0
            for i in others:
                lines[places[i] : places[i] + len(contexts[i])] = 0.0
        # Then once for each row, with its own keys.
        mask_sizes = counts * num_columns
        mask_starts = np.cumsum(mask_sizes) - mask_sizes
        masks = np.empty(int(mask_sizes.sum()), dtype=np.float32)
        start = 0
        for size, width, place in zip(mask_sizes.tolist(), widths, places, strict=True):
            masks[start : start + size].reshape(-1, width)[:] = lines[place : place + width]
            start += size
        rows = np.arange(batch.num_rows)
        columns = np.where(
            np.repeat(in_place, counts),
            batch.slots - np.repeat(lowest, counts),
            rows + np.repeat(num_context - first_rows, counts),
        )
        row_starts = np.repeat(mask_starts - first_rows * num_columns, counts) + rows * np.repeat(num_columns, counts)
        seeing, seen = ancestors(batch.parents).nonzero()
        masks[row_starts[seeing] + columns[seen]] = 0.0

        gathered = [
            np.concatenate((contexts[i], batch.slots[step.row_start : step.row_end]))
            for i, step in enumerate(batch.sequences)
            if i in others
        ]
        return cls(
            runs=[
                slice(low, low + width) if placed else None
                for low, width, placed in zip(lowest.tolist(), widths, in_place.tolist(), strict=True)
            ],
            slots=np.concatenate(gathered) if gathered else of_contexts[:0],
            starts=[0, *np.cumsum(np.where(in_place, 0, num_keys)).tolist()],
            masks=masks,
            num_columns=widths,
        )


def _extremes(
    row_slots: IntArray, first_rows: IntArray, context_slots: IntArray, num_context: IntArray
) -> tuple[IntArray, IntArray]:
    """[num_sequences] each: the lowest and the highest slot of every sequence, its rows' and its context's."""
    lowest = np.minimum.reduceat(row_slots, first_rows)
    highest = np.maximum.reduceat(row_slots, first_rows)
    # Where a sequence without context stands, `reduceat` would take another's.
    some = num_context.nonzero()[0]
    if len(some):
        starts = (np.cumsum(num_context) - num_context)[some]
        lowest[some] = np.minimum(lowest[some], np.minimum.reduceat(context_slots, starts))
        highest[some] = np.maximum(highest[some], np.maximum.reduceat(context_slots, starts))
    return lowest, highest


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
