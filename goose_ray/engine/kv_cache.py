"""Which KV slots are free: token-granular (page size 1), so that keeping a path means keeping its slots.

Knows neither sequences nor the tensors behind the slots.
"""

import numpy as np

from goose.tree import BoolArray, IntArray

__all__ = ["SlotAllocator"]


class SlotAllocator:
    """A stack of free slots and a bitmap of the used ones. A slot has one owner: who allocated it frees it, once.

    A shared, reference-counted slot (a cached prefix) would be owned by the cache, which frees it here when its own
    count falls to zero; nothing in this class would change.
    """

    def __init__(self, num_slots: int) -> None:
        # [num_slots] int64; the first `_num_free` are free, the last of those is handed out next
        self._stack: IntArray = np.arange(num_slots, dtype=np.int64)[::-1].copy()
        self._num_free = num_slots
        # [num_slots] bool
        self._used: BoolArray = np.zeros(num_slots, dtype=np.bool_)
        # [num_slots] int64; work space that finds a slot given twice without sorting
        self._last_index: IntArray = np.zeros(num_slots, dtype=np.int64)

    @property
    def num_slots(self) -> int:
        return len(self._stack)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return len(self._stack) - self._num_free

    def can_allocate(self, count: int) -> bool:
        return count <= self._num_free

    def allocate(self, count: int) -> IntArray:
        """[count] int64: slots that are the caller's until it frees them. Raises RuntimeError if too few are free."""
        if count > self._num_free:
            raise RuntimeError(f"{count} KV slots asked for, {self._num_free} of {self.num_slots} are free")
        slots = self._stack[self._num_free - count : self._num_free][::-1].copy()
        self._num_free -= count
        self._used[slots] = True
        return slots

    def free(self, slots: IntArray) -> None:
        """Raises ValueError, changing nothing, if a slot does not exist, is not in use or is given twice."""
        if not len(slots):
            return
        if slots.min() < 0 or slots.max() >= self.num_slots:
            raise ValueError(f"KV slots {slots[(slots < 0) | (slots >= self.num_slots)]} are not of this pool")
        if not self._used[slots].all():
            raise ValueError(f"KV slots {slots[~self._used[slots]]} are free already")
        order = np.arange(len(slots))
        self._last_index[slots] = order
        twice = self._last_index[slots] != order
        if twice.any():
            raise ValueError(f"KV slots {slots[twice]} are freed twice in one call")
        self._used[slots] = False
        self._stack[self._num_free : self._num_free + len(slots)] = slots[::-1]
        self._num_free += len(slots)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every slot is either on the stack, once, or marked as used."""
        free = self._stack[: self._num_free]
        if len(np.unique(free)) != len(free):
            raise RuntimeError("a KV slot is on the free stack twice")
        if self._used[free].any() or int(self._used.sum()) != self.num_used:
            raise RuntimeError(
                f"{int(self._used.sum())} KV slots are marked as used, {self.num_used} are off the stack"
            )
