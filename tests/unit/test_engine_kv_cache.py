"""SlotAllocator: what is handed out, and what is refused without a trace."""

import numpy as np
import pytest

from goose_ray.engine.kv_cache import SlotAllocator


def test_slots_are_handed_out_once_and_come_back() -> None:
    allocator = SlotAllocator(8)
    first, second = allocator.allocate(3), allocator.allocate(5)
    assert sorted([*first, *second]) == list(range(8))
    assert (allocator.num_used, allocator.num_free, allocator.num_slots) == (8, 0, 8)
    assert not allocator.can_allocate(1)
    allocator.free(second[1:3])
    assert allocator.can_allocate(2)
    assert sorted(allocator.allocate(2)) == sorted(second[1:3])
    allocator.check_integrity()


def test_a_fresh_pool_is_handed_out_in_order_and_freed_slots_first() -> None:
    # Neighbouring tokens in neighbouring slots, and slots that are warm in the caches.
    allocator = SlotAllocator(8)
    assert allocator.allocate(4).tolist() == [0, 1, 2, 3]
    allocator.free(np.array([1, 2]))
    assert allocator.allocate(3).tolist() == [1, 2, 4]


def test_more_than_is_free_is_refused_with_the_numbers() -> None:
    allocator = SlotAllocator(4)
    allocator.allocate(3)
    with pytest.raises(RuntimeError, match="2 KV slots asked for, 1 of 4 are free"):
        allocator.allocate(2)
    assert allocator.num_free == 1


@pytest.mark.parametrize(
    ("slots", "message"),
    [([0, 7], "free already"), ([0, 0], "twice in one call"), ([0, 8], "not of this pool"), ([-1], "not of this pool")],
)
def test_a_wrong_free_changes_nothing(slots: list[int], message: str) -> None:
    allocator = SlotAllocator(8)
    allocator.allocate(4)
    with pytest.raises(ValueError, match=message):
        allocator.free(np.array(slots))
    assert allocator.num_used == 4
    allocator.check_integrity()


def test_a_slot_is_freed_once() -> None:
    allocator = SlotAllocator(4)
    slots = allocator.allocate(2)
    allocator.free(slots)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(slots)


def test_nothing_may_be_allocated_and_freed() -> None:
    allocator = SlotAllocator(4)
    allocator.free(allocator.allocate(0))
    assert allocator.num_free == 4


def test_check_integrity_sees_a_slot_that_is_lost() -> None:
    allocator = SlotAllocator(4)
    slots = allocator.allocate(2)
    allocator._used[slots[0]] = False
    with pytest.raises(RuntimeError, match="1 KV slots are marked as used, 2 are off the stack"):
        allocator.check_integrity()
