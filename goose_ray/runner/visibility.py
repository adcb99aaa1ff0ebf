"""Which keys each row of a sequence may see, as additive masks over arbitrary key columns. Plain numpy."""

import numpy as np

from goose.tree import BoolArray, FloatArray, IntArray

__all__ = ["additive_mask", "row_visibility"]


def row_visibility(parents: IntArray, num_chain: int) -> BoolArray:
    """[R, R] bool: entry (i, j) is true if row j is row i or an ancestor of it among the sequence's own rows.

    `parents` [R] int64 are row numbers within the sequence, -1 for the first; the first `num_chain` rows are a chain.
    """
    num_rows = len(parents)
    visible = np.zeros((num_rows, num_rows), dtype=np.bool_)
    visible[:num_chain, :num_chain] = np.tri(num_chain, dtype=np.bool_)
    for row, parent in enumerate(parents[num_chain:].tolist(), start=num_chain):
        visible[row] = visible[parent]
        visible[row, row] = True
    return visible


def additive_mask(
    visible: BoolArray,
    positions: IntArray,
    *,
    context_columns: IntArray,
    context_start: int,
    own_columns: IntArray,
    num_columns: int,
    window: int | None,
) -> FloatArray:
    """[R, num_columns] float32: 0 where a row sees the key of a column, -inf elsewhere.

    `context_columns` hold the context's keys from position `context_start` on, `own_columns` [R] those of the rows
    themselves; columns named by neither belong to others. `positions` [R] are the rows'. With a window a row at
    position p sees positions above p - window.
    """
    seen_context = np.ones((len(positions), len(context_columns)), dtype=np.bool_)
    seen_own = visible
    if window is not None:
        context_positions = np.arange(context_start, context_start + len(context_columns))
        seen_context = context_positions > positions[:, None] - window
        seen_own = visible & (positions > positions[:, None] - window)
    mask = np.full((len(positions), num_columns), -np.inf, dtype=np.float32)
    mask[:, context_columns] = np.where(seen_context, np.float32(0), np.float32(-np.inf))
    mask[:, own_columns] = np.where(seen_own, np.float32(0), np.float32(-np.inf))
    return mask
