"""Which KV slots are free: token-granular (page size 1), so that keeping a path means keeping its slots.

Attention reads a sequence's slots in place if they lie together, so each sequence is given a *region*: a run of the
pool from which it is served first and others last. A region is a wish, not a possession: its free slots are anybody's
once there are no others.

Knows neither sequences nor the tensors behind the slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.jit import jit
from goose.tree import BoolArray, IntArray

__all__ = ["Region", "SlotAllocator"]


@dataclass(frozen=True, slots=True)
class Region:
    """Slots `start` to `end` (one past the last)."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class SlotAllocator:
    """Bitmaps of the free slots and of the regions. A slot has one owner: who allocated it frees it, once."""

    def __init__(self, num_slots: int) -> None:
        # [num_slots] bool
        self._free: BoolArray = np.ones(num_slots, dtype=np.bool_)
        # [num_slots] bool: in some region; regions do not overlap
        self._reserved: BoolArray = np.zeros(num_slots, dtype=np.bool_)
        self._num_free = num_slots
        # where the last region ended
        self._next = 0
        # [num_slots] int64; work space that finds a slot given twice without sorting
        self._last_index: IntArray = np.zeros(num_slots, dtype=np.int64)
        # Compiles, so that no request waits for it.
        self.allocate_all([])

    @property
    def num_slots(self) -> int:
        return len(self._free)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.num_slots - self._num_free

    def can_allocate(self, count: int) -> bool:
        return count <= self._num_free

    def open_region(self, size: int, *, near: int | None = None) -> Region:
        """The run of `size` free slots from `near` on if there is one, else the next such run behind the last region
        opened, else the longest run there is, which may be empty. Never overlaps another region.
        """
        open_slots = self._free & ~self._reserved
        if near is not None and near + size <= self.num_slots and open_slots[near : near + size].all():
            region = Region(near, near + size)
        else:
            # A run begins where the step between neighbours is 1, and ends where it is -1.
            edges = np.diff(open_slots.astype(np.int8), prepend=0, append=0)
            starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            region = _choose(starts, ends, size, self._next)
            self._next = region.end
        self._reserved[region.start : region.end] = True
        return region

    def close_region(self, region: Region) -> None:
        """Its slots, used or free, are no longer set apart."""
        self._reserved[region.start : region.end] = False

    def allocate(self, count: int, region: Region | None = None) -> IntArray:
        """[count] int64: `allocate_all` for one."""
        return self.allocate_all([(count, region)])

    def allocate_all(self, wanted: Sequence[tuple[int, Region | None]]) -> IntArray:
        """[sum of counts] int64: slots that are the caller's until it frees them, for one after the other the lowest
        free ones of its region, then such as are in no region, those behind it before those below it.

        Raises RuntimeError, changing nothing, if too few are free.
        """
        total = sum(count for count, _ in wanted)
        if total > self._num_free:
            raise RuntimeError(f"{total} KV slots asked for, {self._num_free} of {self.num_slots} are free")
        regions = [(0, 0) if region is None else (region.start, region.end) for _, region in wanted]
        asked = np.array([(*region, count) for region, (count, _) in zip(regions, wanted, strict=True)], dtype=np.int64)
        slots, found = np.empty(total, dtype=np.int64), np.zeros(len(wanted), dtype=np.int64)
        # Regions do not overlap, so what each gives was nobody else's.
        if _take_lowest(self._free, asked.reshape(-1, 3), slots, found) < total:
            place = 0
            for (start, end), (count, _), num_found in zip(regions, wanted, found.tolist(), strict=True):
                if num_found < count:
                    more = self._elsewhere(count - num_found, start, end)
                    self._free[more] = False
                    slots[place + num_found : place + count] = more
                place += count
        self._num_free -= total
        return slots

    def free(self, slots: IntArray) -> None:
        """Raises ValueError, changing nothing, if a slot does not exist, is not in use or is given twice."""
        if not len(slots):
            return
        if slots.min() < 0 or slots.max() >= self.num_slots:
            raise ValueError(f"KV slots {slots[(slots < 0) | (slots >= self.num_slots)]} are not of this pool")
        if self._free[slots].any():
            raise ValueError(f"KV slots {slots[self._free[slots]]} are free already")
        order = np.arange(len(slots))
        self._last_index[slots] = order
        twice = self._last_index[slots] != order
        if twice.any():
            raise ValueError(f"KV slots {slots[twice]} are freed twice in one call")
        self._free[slots] = True
        self._num_free += len(slots)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless as many slots are free as are counted."""
        num_free = int(self._free.sum())
        if num_free != self._num_free:
            raise RuntimeError(f"{num_free} KV slots are free, {self._num_free} are counted")

    def _elsewhere(self, count: int, start: int, end: int) -> IntArray:
        unreserved = np.flatnonzero(self._free & ~self._reserved)
        behind = int(unreserved.searchsorted(end))
        slots = np.roll(unreserved, -behind)[:count]
        if len(slots) < count:
            foreign = self._free & self._reserved
            foreign[start:end] = False
            slots = np.concatenate((slots, np.flatnonzero(foreign)[: count - len(slots)]))
        return slots


@jit
def _take_lowest(free: BoolArray, asked: IntArray, slots: IntArray, found: IntArray) -> int:
    """Of each region of `asked` [n, 3] (start, end, count) the lowest free slots, which are free no longer; `slots` has
    a place for each that is asked for, `found` [n] says how many there were. Returns how many in all.
    """
    place = total = 0
    for i in range(len(asked)):
        slot, end, count = asked[i, 0], asked[i, 1], asked[i, 2]
        num_found = 0
        while num_found < count and slot < end:
            if free[slot]:
                free[slot] = False
                slots[place + num_found] = slot
                num_found += 1
            slot += 1
        found[i] = num_found
        total += num_found
        place += count
    return total


def _choose(starts: IntArray, ends: IntArray, size: int, next_start: int) -> Region:
    """The first of these runs that has `size` slots from `next_start` on, else the first that has as many, else the
    longest.
    """
    if not len(starts):
        return Region(0, 0)
    for begins in (np.maximum(starts, next_start), starts):
        fitting = np.flatnonzero(ends - begins >= size)
        if len(fitting):
            start = int(begins[fitting[0]])
            return Region(start, start + size)
    longest = int((ends - starts).argmax())
    return Region(int(starts[longest]), int(ends[longest]))
