"""Scheduler: who takes part in a step, under both budgets."""

import numpy as np
from engine_helpers import make_request
from fakes import FakeTokenizer

from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.kv_memory import KVMemory
from goose_ray.engine.scheduler import Schedule, Scheduler
from goose_ray.engine.sequence import SequenceState, SequenceStatus


def scheduler(*, slots: int = 1000, rows: int = 32, running: int = 8, budget: int = 4) -> tuple[Scheduler, KVMemory]:
    memory = KVMemory(slots, prefix_cache=False)
    return Scheduler(memory, max_batch_rows=rows, max_running_requests=running, budget=budget), memory


def sequence(name: str, num_prompt: int, max_tokens: int = 20) -> SequenceState:
    request = make_request(name, range(1, num_prompt + 1), max_tokens=max_tokens)
    return SequenceState(request, OutputStream(FakeTokenizer(), request.sampling, ()), arrived_s=0.0)


def advance(schedule: Schedule, memory: KVMemory, *, num_tokens: int = 1) -> None:
    """What a step would do: the chains are computed, each tree commits `num_tokens`."""
    for entry in schedule.sequences:
        entry.sequence.computed(memory.allocate([(entry.sequence, entry.num_chain)]))
        if entry.has_tree:
            entry.sequence.computed(memory.allocate([(entry.sequence, num_tokens - 1)]))
            entry.sequence.tokens.extend(np.full(num_tokens, 7))


def chains(schedule: Schedule) -> list[tuple[str, int, bool]]:
    return [(entry.sequence.request_id, entry.num_chain, entry.has_tree) for entry in schedule.sequences]


def test_a_short_prompt_is_computed_at_once_and_gets_a_tree() -> None:
    plan, _ = scheduler()
    plan.add(sequence("a", 5))
    assert chains(plan.schedule()) == [("a", 5, True)]


def test_a_long_prompt_is_computed_in_chunks_and_the_last_has_the_tree() -> None:
    plan, memory = scheduler(rows=32)
    plan.add(sequence("a", 70))
    seen = []
    for _ in range(4):
        schedule = plan.schedule()
        seen += chains(schedule)
        advance(schedule, memory)
    assert seen == [("a", 32, False), ("a", 32, False), ("a", 6, True), ("a", 1, True)]


def test_decoding_comes_first_and_prefill_gets_half_of_the_rows_left() -> None:
    # 3 anchors leave 29 rows; the trees could use 3 * 11 = 33, so prefill gets 15 and drafts 14.
    plan, memory = scheduler(rows=32, budget=12)
    for name in "abc":
        plan.add(sequence(name, 2))
    advance(plan.schedule(), memory)
    plan.add(sequence("d", 100))
    schedule = plan.schedule()
    assert chains(schedule) == [("a", 1, True), ("b", 1, True), ("c", 1, True), ("d", 15, False)]
    assert schedule.max_draft_nodes == 14


def test_prefill_takes_what_the_trees_cannot_use() -> None:
    # 1 anchor leaves 31 rows; the tree can use 3.
    plan, memory = scheduler(rows=32, budget=4)
    plan.add(sequence("a", 2))
    advance(plan.schedule(), memory)
    plan.add(sequence("b", 100))
    schedule = plan.schedule()
    assert chains(schedule) == [("a", 1, True), ("b", 28, False)]
    assert schedule.max_draft_nodes == 3


def test_without_prefill_the_trees_may_use_every_row() -> None:
    plan, memory = scheduler(rows=32)
    plan.add(sequence("a", 2))
    advance(plan.schedule(), memory)
    assert plan.schedule().max_draft_nodes == 31


def test_prefill_is_first_come_first_served() -> None:
    plan, memory = scheduler(rows=16)
    for name, length in (("a", 20), ("b", 6), ("c", 30)):
        plan.add(sequence(name, length))
    first = plan.schedule()
    assert chains(first) == [("a", 16, False)]
    advance(first, memory)
    assert chains(plan.schedule()) == [("a", 4, True), ("b", 6, True), ("c", 6, False)]
    assert plan.num_waiting == 0


def test_prefill_advances_even_if_all_other_rows_are_anchors() -> None:
    plan, memory = scheduler(rows=4, running=10)
    for name in "abc":
        plan.add(sequence(name, 1))
    advance(plan.schedule(), memory)
    plan.add(sequence("d", 9))
    plan.add(sequence("e", 1))
    schedule = plan.schedule()
    assert chains(schedule) == [("a", 1, True), ("b", 1, True), ("c", 1, True), ("d", 1, False)]
    assert schedule.max_draft_nodes == 0
    # A fifth sequence would find no row.
    assert plan.num_running == 4
    assert plan.num_waiting == 1


def test_no_more_run_than_may() -> None:
    plan, _ = scheduler(running=2)
    for name in "abc":
        plan.add(sequence(name, 3))
    assert [name for name, _, _ in chains(plan.schedule())] == ["a", "b"]
    assert (plan.num_running, plan.num_waiting, plan.num_requests) == (2, 1, 3)


def test_drafts_shrink_before_anyone_is_preempted() -> None:
    plan, memory = scheduler(slots=12, budget=1)
    plan.add(sequence("a", 4, max_tokens=8))
    plan.add(sequence("b", 2, max_tokens=8))
    advance(plan.schedule(), memory)
    for free_after_anchors in (4, 2, 0):
        schedule = plan.schedule()
        assert not schedule.preempted
        assert schedule.max_draft_nodes == free_after_anchors
        advance(schedule, memory)
    assert memory.num_available == 0


def test_the_latest_is_preempted_and_recomputed_first() -> None:
    plan, memory = scheduler(slots=12, budget=1)
    a, b, c = sequence("a", 4, max_tokens=8), sequence("b", 2, max_tokens=8), sequence("c", 2, max_tokens=8)
    plan.add(a)
    plan.add(b)
    for _ in range(4):
        advance(plan.schedule(), memory)
    plan.add(c)
    schedule = plan.schedule()
    assert schedule.preempted == (b,)
    assert (b.status, b.num_computed, b.num_tokens) == (SequenceStatus.WAITING, 0, 6)
    assert chains(schedule) == [("a", 1, True)]
    assert plan.num_waiting == 2
    plan.remove(a)
    # b before c, with its prompt and its output in one chain
    assert chains(plan.schedule()) == [("b", 6, True), ("c", 2, True)]


def test_a_newcomer_waits_until_trees_and_growth_fit_beside_it() -> None:
    # a holds 4 slots and claims 1; 7 are left. The newcomer's 4, and 2 of growth for each, do not fit.
    plan, memory = scheduler(slots=12, budget=2)
    a = sequence("a", 4, max_tokens=8)
    plan.add(a)
    advance(plan.schedule(), memory)
    plan.add(sequence("b", 4, max_tokens=8))
    assert chains(plan.schedule()) == [("a", 1, True)]
    plan.remove(a)
    assert chains(plan.schedule()) == [("b", 4, True)]


def test_a_running_prefill_keeps_room_for_its_whole_chain() -> None:
    plan, memory = scheduler(slots=40, rows=8, budget=4)
    plan.add(sequence("a", 3, max_tokens=20))
    advance(plan.schedule(), memory)
    plan.add(sequence("b", 20, max_tokens=4))
    schedule = plan.schedule()
    assert chains(schedule) == [("a", 1, True), ("b", 4, False)]
    # 37 free; 1 and 20 claimed; of 8 rows 3 are left
    assert schedule.max_draft_nodes == 3
    advance(schedule, memory)
    plan.add(sequence("c", 15, max_tokens=4))
    assert [name for name, _, _ in chains(plan.schedule())] == ["a", "b"]


def test_a_sequence_that_needs_the_whole_pool_runs_alone() -> None:
    plan, memory = scheduler(slots=12, budget=8)
    plan.add(sequence("a", 4, max_tokens=8))
    steps = 0
    while memory.num_available:
        schedule = plan.schedule()
        assert not schedule.preempted
        advance(schedule, memory)
        steps += 1
    assert steps == 9


def test_removal_frees_the_slots_of_whoever_leaves() -> None:
    plan, memory = scheduler(running=1)
    a, b = sequence("a", 3), sequence("b", 3)
    plan.add(a)
    plan.add(b)
    advance(plan.schedule(), memory)
    plan.remove(b)
    assert memory.num_used == 3
    plan.remove(a)
    assert memory.num_used == 0
    assert plan.num_requests == 0
    assert {a.status, b.status} == {SequenceStatus.FINISHED}
