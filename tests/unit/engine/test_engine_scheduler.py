"""Scheduler: who takes part in a step, under both budgets."""

from dataclasses import replace

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


def sequence(name: str, num_prompt: int, max_tokens: int = 20, *, priority: int = 0, first: int = 1) -> SequenceState:
    prompt = range(first, first + num_prompt)
    request = replace(make_request(name, prompt, max_tokens=max_tokens), priority=priority)
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


def test_prefill_takes_what_the_trees_will_not_use() -> None:
    # 1 anchor leaves 31 rows; of a budget of 60 the tree is known to use 3.5 nodes.
    plan, memory = scheduler(rows=32, budget=60)
    plan.add(sequence("a", 2))
    advance(plan.schedule(), memory)
    plan.add(sequence("b", 100))
    schedule = plan.schedule(3.5)
    assert chains(schedule) == [("a", 1, True), ("b", 28, False)]
    assert schedule.max_draft_nodes == 3


def test_without_prefill_the_trees_may_use_every_row() -> None:
    plan, memory = scheduler(rows=32)
    plan.add(sequence("a", 2))
    advance(plan.schedule(), memory)
    assert plan.schedule().max_draft_nodes == 31


def test_half_of_the_prefill_is_the_firsts_and_the_other_the_shortests() -> None:
    plan, memory = scheduler(rows=16)
    for name, length in (("a", 20), ("b", 30), ("c", 6)):
        plan.add(sequence(name, length))
    first = plan.schedule()
    assert chains(first) == [("a", 8, False), ("b", 2, False), ("c", 6, True)]
    assert plan.num_waiting == 0
    advance(first, memory)
    # c's anchor leaves 15 rows, of which its tree can use 3.
    second = plan.schedule()
    assert chains(second) == [("c", 1, True), ("a", 6, False), ("b", 6, False)]
    advance(second, memory)
    # What the first cannot use goes to the others.
    assert chains(plan.schedule()) == [("c", 1, True), ("a", 6, True), ("b", 6, False)]


def test_prompts_of_one_length_are_computed_one_after_another() -> None:
    plan, memory = scheduler(rows=16)
    for name in "abc":
        plan.add(sequence(name, 20))
    order: list[str] = []
    while len(order) < 3:
        schedule = plan.schedule()
        order += [name for name, _, has_tree in chains(schedule) if has_tree and name not in order]
        advance(schedule, memory)
    assert order == ["a", "b", "c"]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    plan, memory = scheduler(rows=16)
    plan.add(sequence("long", 500))
    advance(plan.schedule(), memory)
    plan.add(sequence("short", 7))
    assert chains(plan.schedule()) == [("long", 9, False), ("short", 7, True)]


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    plan, memory = scheduler(slots=10_000, rows=16, running=50, budget=1)
    long = sequence("long", 300)
    plan.add(long)
    steps = 0
    while long.num_computed < 300:
        for number in range(3):
            plan.add(sequence(f"{steps}.{number}", 7))
        schedule = plan.schedule()
        given = {name: (count, has_tree) for name, count, has_tree in chains(schedule)}
        num_decoding = sum(has_tree and count == 1 for count, has_tree in given.values())
        # The first in rank has half of the rows that are not anchors.
        assert given["long"][0] >= min(300 - long.num_computed, (16 - num_decoding) // 2)
        advance(schedule, memory)
        for entry in schedule.sequences:
            if entry.has_tree and entry.sequence is not long:
                plan.remove(entry.sequence)
        steps += 1
    assert steps <= 300 // 8 + 1


def test_every_prompt_is_computed_within_twice_the_work_before_it() -> None:
    random = np.random.default_rng(5)
    plan, memory = scheduler(slots=10_000, rows=32, running=100, budget=1)
    lengths = random.integers(1, 200, 40).tolist()
    sequences = [sequence(str(number), length) for number, length in enumerate(lengths)]
    for one in sequences:
        plan.add(one)
    done: dict[str, int] = {}
    steps = 0
    while len(done) < len(sequences):
        schedule = plan.schedule()
        advance(schedule, memory)
        steps += 1
        for entry in schedule.sequences:
            if entry.has_tree:
                done[entry.sequence.request_id] = steps
                plan.remove(entry.sequence)
    for number, one in enumerate(sequences):
        # Half a forward a step for it and those before it, and a step that each may leave unfilled.
        assert done[one.request_id] <= sum(lengths[: number + 1]) // 16 + number + 1
    # And the short ones were not kept waiting by the long ones: all is computed in the steps that the rows take.
    assert steps <= sum(lengths) // 32 + 2


def test_a_lower_priority_number_comes_first() -> None:
    plan, memory = scheduler(rows=16, running=3)
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 0)):
        plan.add(sequence(name, 20, priority=priority))
    first = plan.schedule()
    assert chains(first) == [("c", 8, False), ("a", 8, False)]
    assert plan.num_waiting == 1
    advance(first, memory)
    assert [name for name, _, _ in chains(plan.schedule())] == ["c", "a"]


def test_a_shorter_prompt_does_not_pass_one_of_a_better_priority() -> None:
    plan, _ = scheduler(rows=16)
    for name, length, priority in (("a", 40, 0), ("b", 30, 1), ("c", 9, 2)):
        plan.add(sequence(name, length, priority=priority))
    assert chains(plan.schedule()) == [("a", 8, False), ("b", 8, False)]


def test_the_last_in_rank_is_preempted_however_early_it_was_admitted() -> None:
    plan, memory = scheduler(slots=12, budget=1)
    late, early = sequence("late", 4, max_tokens=8, priority=1), sequence("early", 2, max_tokens=8)
    plan.add(late)
    advance(plan.schedule(), memory)
    plan.add(early)
    while not (schedule := plan.schedule()).preempted:
        assert plan.num_running == 2
        advance(schedule, memory)
    assert schedule.preempted == (late,)
    assert early.status is SequenceStatus.RUNNING


def test_a_sequence_waits_for_the_beginning_that_another_is_computing() -> None:
    memory = KVMemory(1000, prefix_cache=True)
    plan = Scheduler(memory, max_batch_rows=32, max_running_requests=8, budget=4)
    same = [sequence(name, 52) for name in ("a", "b", "c")]
    other = sequence("other", 8, first=60)
    for one in (*same, other):
        plan.add(one)

    def step() -> list[tuple[str, int, bool]]:
        schedule = plan.schedule()
        advance(schedule, memory)
        for entry in schedule.sequences:
            memory.publish(entry.sequence)
        memory.check_integrity([*same, other])
        return chains(schedule)

    # Those that share nothing pass.
    assert step() == [("a", 24, False), ("other", 8, True)]
    assert step() == [("other", 1, True), ("a", 28, True)]
    assert step() == [("a", 1, True), ("other", 1, True), ("b", 1, True), ("c", 1, True)]


def test_no_sequence_waits_for_one_that_comes_after_it() -> None:
    plan = Scheduler(KVMemory(1000, prefix_cache=True), max_batch_rows=32, max_running_requests=8, budget=4)
    plan.add(sequence("slow", 100, priority=1))
    plan.schedule()
    plan.add(sequence("urgent", 90))
    assert [name for name, _, _ in chains(plan.schedule())] == ["urgent", "slow"]


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
