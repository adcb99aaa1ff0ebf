"""SlotAllocator as a state machine: no slot has two owners, none is lost."""

from random import Random

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from goose.tree import IntArray
from goose_ray.engine.kv_cache import Region, SlotAllocator

_NUM_SLOTS = 24


class AllocatorMachine(RuleBasedStateMachine):
    owned = Bundle("owned")
    regions = Bundle("regions")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = SlotAllocator(_NUM_SLOTS)
        self.in_use: set[int] = set()
        self.reserved: set[int] = set()

    @rule(target=regions, size=st.integers(1, 12), near=st.none() | st.integers(0, _NUM_SLOTS))
    def open_region(self, size: int, near: int | None) -> Region:
        region = self.allocator.open_region(size, near=near)
        slots = set(range(region.start, region.end))
        assert len(slots) <= size
        assert not slots & (self.reserved | self.in_use)
        self.reserved |= slots
        return region

    @rule(region=consumes(regions))
    def close_region(self, region: Region) -> None:
        self.allocator.close_region(region)
        self.reserved -= set(range(region.start, region.end))

    @rule(target=owned, count=st.integers(0, 10), region=st.none() | regions)
    def allocate(self, count: int, region: Region | None) -> IntArray:
        if not self.allocator.can_allocate(count):
            return np.empty(0, np.int64)
        own = set(range(region.start, region.end)) - self.in_use if region else set()
        slots = self.allocator.allocate(count, region)
        # Its own first, then what is in no region.
        taken = set(slots.tolist())
        assert taken <= own or own <= taken
        unreserved = set(range(_NUM_SLOTS)) - self.reserved - self.in_use
        assert taken <= own | unreserved or own | unreserved <= taken
        assert len(slots) == count
        assert not self.in_use & set(slots.tolist())
        assert all(0 <= slot < _NUM_SLOTS for slot in slots.tolist())
        self.in_use |= set(slots.tolist())
        return slots

    @rule(target=owned, slots=consumes(owned), keep=st.integers(0, 10), shuffle=st.randoms())
    def free_some(self, slots: IntArray, keep: int, shuffle: Random) -> object:
        order = slots.tolist()
        shuffle.shuffle(order)
        kept, freed = np.array(order[:keep], np.int64), np.array(order[keep:], np.int64)
        self.allocator.free(freed)
        self.in_use -= set(freed.tolist())
        return multiple(kept)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.allocator.num_used == len(self.in_use)
        assert self.allocator.num_free == _NUM_SLOTS - len(self.in_use)
        self.allocator.check_integrity()


TestAllocator = AllocatorMachine.TestCase
