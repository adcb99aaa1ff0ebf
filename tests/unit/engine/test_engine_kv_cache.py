"""SlotAllocator: what is handed out, and what is refused without a trace."""

import numpy as np
import pytest

from goose_ray.engine.kv_cache import Region, SlotAllocator


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


def test_a_fresh_pool_is_handed_out_in_order_and_holes_are_filled_first() -> None:
    allocator = SlotAllocator(8)
    assert allocator.allocate(4).tolist() == [0, 1, 2, 3]
    allocator.free(np.array([1, 2]))
    assert allocator.allocate(3).tolist() == [1, 2, 4]


def test_each_of_many_has_its_region_first_and_what_is_left_over_then() -> None:
    allocator = SlotAllocator(12)
    first, second = allocator.open_region(3), allocator.open_region(4)
    slots = allocator.allocate_all([(5, first), (3, second), (2, None)]).tolist()
    # Of the second region one slot is free, which is anybody's once there are no others.
    assert [slots[:5], slots[5:8], slots[8:]] == [[0, 1, 2, 7, 8], [3, 4, 5], [9, 10]]
    allocator.check_integrity()
    assert sorted(allocator.allocate_all([(0, first), (2, None)]).tolist()) == [6, 11]


def test_too_many_for_all_together_take_nothing() -> None:
    allocator = SlotAllocator(8)
    with pytest.raises(RuntimeError, match="9 KV slots asked for, 8 of 8 are free"):
        allocator.allocate_all([(4, None), (5, None)])
    assert allocator.num_free == 8


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
    allocator._free[slots[0]] = True
    with pytest.raises(RuntimeError, match="3 KV slots are free, 2 are counted"):
        allocator.check_integrity()


def test_each_region_is_served_from_its_own_run() -> None:
    allocator = SlotAllocator(32)
    a, b = allocator.open_region(8), allocator.open_region(8)
    assert (a, b) == (Region(0, 8), Region(8, 16))
    assert [allocator.allocate(3, region).tolist() for region in (a, b, a)] == [[0, 1, 2], [8, 9, 10], [3, 4, 5]]
    # More than the region has: what nobody has set apart, the nearest behind it first, and others' slots last.
    assert allocator.allocate(4, a).tolist() == [6, 7, 16, 17]
    assert allocator.allocate(16, a).tolist() == [*range(18, 32), 11, 12]
    assert allocator.allocate(3, b).tolist() == [13, 14, 15]


def test_a_region_goes_where_it_is_wanted_if_there_is_room() -> None:
    allocator = SlotAllocator(32)
    allocator.open_region(4)
    assert allocator.open_region(8, near=20) == Region(20, 28)
    assert allocator.open_region(8, near=24) == Region(4, 12)


def test_regions_go_round_the_pool_and_take_the_longest_run_if_none_is_long_enough() -> None:
    allocator = SlotAllocator(32)
    first, second, third = (allocator.open_region(10) for _ in range(3))
    allocator.allocate(10, second)
    allocator.close_region(first)
    assert allocator.open_region(6) == Region(0, 6)
    assert allocator.open_region(6) == Region(6, 10)
    assert allocator.open_region(6) == Region(30, 32)
    assert allocator.open_region(6) == Region(0, 0)
    assert third == Region(20, 30)
