"""SlotAllocator as a state machine: no slot has two owners, none is lost."""

from random import Random

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from goose.tree import IntArray
from goose_ray.engine.kv_cache import SlotAllocator

_NUM_SLOTS = 24


class AllocatorMachine(RuleBasedStateMachine):
    owned = Bundle("owned")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = SlotAllocator(_NUM_SLOTS)
        self.in_use: set[int] = set()

    @rule(target=owned, count=st.integers(0, 10))
    def allocate(self, count: int) -> IntArray:
        if not self.allocator.can_allocate(count):
            return np.empty(0, np.int64)
        slots = self.allocator.allocate(count)
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
