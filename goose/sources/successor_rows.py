"""Rows of successors and their scores, in flat arrays: by number, or by key for a bounded number of keys.

Knows nothing of where rows come from or whom they may be shown to.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from goose.tree import IntArray

__all__ = ["KeyedRows", "SuccessorRows", "last_of_each"]

# Spare room after growing, so that a row costs O(1), and memory stays near what is used.
_GROWTH = 1.25


class SuccessorRows:
    """Rows of `width` successors by number. As long as the largest number written to.

    Scores are kept in double precision: tree widths are rounded products of them, and must come out the same whether
    a score was given in single or in double.
    """

    def __init__(self, width: int, *, max_rows: int | None = None) -> None:
        self._max_rows = max_rows
        # [num_rows, width]: successors, most likely first; -1 behind the last one, and all along an empty row
        self._ids = np.full((0, width), -1, dtype=np.int32)
        # [num_rows, width]
        self._scores = np.zeros((0, width), dtype=np.float64)

    @property
    def num_bytes(self) -> int:
        return self._ids.nbytes + self._scores.nbytes

    def __contains__(self, number: int) -> bool:
        return number < len(self._ids) and bool(self._ids[number, 0] >= 0)

    def read(self, number: int) -> tuple[list[int], list[float]]:
        """Successors, most likely first, and their scores; none where nothing was written."""
        if number not in self:
            return [], []
        ids: list[int] = self._ids[number].tolist()
        scores: list[float] = self._scores[number].tolist()
        if ids[-1] >= 0:
            return ids, scores
        length = ids.index(-1)
        return ids[:length], scores[:length]

    def write(self, numbers: IntArray, ids: NDArray[np.int32], scores: NDArray[np.float64]) -> None:
        """Replaces the rows of distinct `numbers`."""
        if not len(numbers):
            return
        needed = int(numbers.max()) + 1
        if needed > len(self._ids):
            capacity = max(needed, int(_GROWTH * len(self._ids)), 1024)
            more = (capacity if self._max_rows is None else min(capacity, self._max_rows)) - len(self._ids)
            width = self._ids.shape[1]
            self._ids = np.concatenate([self._ids, np.full((more, width), -1, dtype=np.int32)])
            self._scores = np.concatenate([self._scores, np.zeros((more, width), dtype=np.float64)])
        self._ids[numbers], self._scores[numbers] = ids, scores


class KeyedRows:
    """Rows by key, at most `max_rows`; a new key takes the place of the one that entered first."""

    def __init__(self, width: int, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._rows = SuccessorRows(width, max_rows=max_rows)
        self._slots: dict[Hashable, int] = {}
        # [num_slots]: the key that holds each
        self._keys: list[Hashable] = []
        self._next_slot = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows; the keys take about as much again."""
        return self._rows.num_bytes

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def read(self, key: Hashable) -> tuple[list[int], list[float]] | None:
        """Successors and scores; None if the key is not known."""
        slot = self._slots.get(key)
        return None if slot is None else self._rows.read(slot)

    def write(self, keys: Sequence[Hashable], ids: NDArray[np.int32], scores: NDArray[np.float64]) -> None:
        """Replaces the rows of distinct `keys`, entered in order; the last `max_rows` count."""
        latest = slice(max(0, len(keys) - self._max_rows), None)
        slots = self._claim(keys[latest])
        # A slot claimed late in the batch may have been another row's early in it: the later one holds it now.
        kept = last_of_each(slots)
        self._rows.write(slots[kept], ids[latest][kept], scores[latest][kept])

    def _claim(self, keys: Sequence[Hashable]) -> IntArray:
        slots = np.empty(len(keys), dtype=np.int64)
        for row, key in enumerate(keys):
            slot = self._slots.get(key)
            if slot is None:
                slot = self._next_slot
                self._next_slot = (slot + 1) % self._max_rows
                if slot < len(self._keys):
                    del self._slots[self._keys[slot]]
                    self._keys[slot] = key
                else:
                    self._keys.append(key)
                self._slots[key] = slot
            slots[row] = slot
        return slots


def last_of_each(keys: IntArray) -> IntArray:
    """Ascending indices of the last entry of each distinct key."""
    _, first_reversed = np.unique(keys[::-1], return_index=True)
    return np.sort(len(keys) - 1 - first_reversed)
