"""Engine with the prefix cache: what is not computed again, what never is kept, and that no reply shows it."""

from dataclasses import replace

import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.speculator import Speculator
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.step import StepBatch

MODEL = looping_model()


def expected(request: GenerationRequest) -> tuple[str, list[int], str, str | int | None]:
    return plain_reply(MODEL, request, FakeTokenizer(specials=(EOS,)))


def rows_of(engine: Engine, request: GenerationRequest) -> int:
    """Runs it; the committed tokens that were computed for it."""
    before = engine.stats()
    reply = run(engine, request)[request.request_id]
    assert reply.visible == expected(request)
    after = engine.stats()
    return after.num_rows - before.num_rows - (after.num_draft_tokens - before.num_draft_tokens)


def cached(engine: Engine, request: GenerationRequest) -> int:
    last = run(engine, request)[request.request_id].last
    assert last is not None
    return last.num_cached_tokens


def plain_engine(*, prefix_cache: bool = True) -> Engine:
    return make_engine(MODEL, ScriptedSpeculator(MODEL, length=0), prefix_cache=prefix_cache)


def test_of_a_prompt_seen_before_the_last_token_alone_is_computed() -> None:
    engine = plain_engine()
    request = make_request(prompt=range(1, 41), max_tokens=5)
    assert rows_of(engine, request) == 40 + 4
    assert rows_of(engine, request) == 1 + 4
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (80, 39)
    assert stats.prompt_tokens == 80


def test_without_the_cache_everything_is_computed_every_time() -> None:
    engine = plain_engine(prefix_cache=False)
    request = make_request(prompt=range(1, 41), max_tokens=5)
    assert [rows_of(engine, request) for _ in range(2)] == [44, 44]
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (0, 0)


def test_the_next_turn_finds_prompt_and_reply_of_the_last() -> None:
    engine = make_engine(MODEL)
    first = make_request(prompt=range(1, 21), max_tokens=30)
    reply = run(engine, first)["r"]
    second = make_request(prompt=(*range(1, 21), *reply.token_ids, 7, 8, 9), max_tokens=6)
    # The last token of a reply is never computed.
    assert cached(engine, second) == 20 + 30 - 1


def test_a_prompt_is_shared_while_its_first_request_still_runs() -> None:
    engine = plain_engine()
    engine.add_request(make_request("first", range(1, 41), max_tokens=50))
    engine.step()
    engine.add_request(make_request("second", (*range(1, 41), 50), max_tokens=50))
    engine.step()
    assert engine.stats().prefix_cache_hits == 40
    assert engine.stats().kv_slots_used == 40 + 1 + 1
    engine.check_integrity()
    engine.cancel("first")
    assert engine.stats().kv_slots_used == 41
    engine.check_integrity()
    while engine.has_work:
        engine.step()


def test_a_prompt_that_comes_several_times_at_once_is_computed_once() -> None:
    engine = make_engine(MODEL, ScriptedSpeculator(MODEL, length=0), max_batch_rows=50)
    prompt = [number % 50 + 1 for number in range(100)]
    requests = [make_request(str(n), prompt, max_tokens=10, temperature=0.9, seed=n) for n in range(4)]
    for request_id, reply in run(engine, *requests).items():
        assert reply.visible == expected(requests[int(request_id)])
    assert engine.stats().num_rows == 100 + 3 + 4 * 9


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_what_was_rejected_is_computed_when_it_is_asked_for(num_right: int) -> None:
    engine = make_engine(MODEL, ScriptedSpeculator(MODEL, num_right=num_right, siblings=2))
    request = make_request(prompt=(1, 2, 3), max_tokens=12)
    output = run(engine, request)["r"].token_ids
    for number, token in enumerate(output[:-1]):
        told = [1, 2, 3, *output[:number], (token + 1) % 60, 5]
        assert cached(engine, make_request(prompt=told, max_tokens=1)) == 3 + number


def test_what_a_stop_cut_off_is_not_kept() -> None:
    # Everything is drafted, rightly, in one step; the stop token ends it inside the accepted run.
    engine = make_engine(MODEL)
    output = expected(make_request(max_tokens=9))[1]
    stop = next(token for number, token in enumerate(output[2:], 2) if token not in output[:number])
    ended = run(engine, make_request(max_tokens=9, stop_token_ids=(stop,)))["r"]
    assert len(ended.token_ids) < len(output) - 1
    whole = make_request(prompt=(1, 2, 3, *output), max_tokens=1)
    assert cached(engine, whole) == 3 + len(ended.token_ids)


def test_salts_share_nothing() -> None:
    engine = plain_engine()
    request = make_request(prompt=range(1, 31), max_tokens=2)
    salted = [replace(request, cache_salt=salt) for salt in (None, "a", "b", "a")]
    assert [cached(engine, one) for one in salted] == [0, 0, 0, 29]


def test_a_request_that_needs_the_whole_pool_gets_it_whatever_is_cached() -> None:
    engine = make_engine(MODEL, ScriptedSpeculator(MODEL, length=0), runner=FakeRunner(MODEL, num_slots=100))
    run(engine, make_request(prompt=[1, 2, 3, 4, *range(30, 50)], max_tokens=10))
    # It begins like the first, too little to be shared as long as there is room.
    request = make_request(prompt=[1, 2, 3, 4, *range(10, 30)], max_tokens=76)
    engine.add_request(request)
    engine.step()
    (sequence,) = engine._sequences.values()
    assert sequence.num_doubled == 4
    while engine.has_work:
        (output,) = engine.step()
        engine.check_integrity()
    assert output.finish_reason == "length"
    assert engine.stats().num_preemptions == 0
    # The last token needs no slot, but all others do.
    assert sequence.num_output == 76
    assert cached(engine, make_request(prompt=sequence.tokens.view().tolist()[:-1], max_tokens=1)) == 98


def test_a_full_pool_gives_up_what_was_not_used_for_longest() -> None:
    runner = FakeRunner(MODEL, num_slots=100)
    engine = make_engine(MODEL, ScriptedSpeculator(MODEL, length=0), runner=runner)
    prompts = [[start, *range(start, start + 29)] for start in (1, 10, 20)]
    a, b, c = (make_request(prompt=prompt, max_tokens=1) for prompt in prompts)
    other = make_request(prompt=[60] * 12, max_tokens=1)
    assert [cached(engine, one) for one in (a, b, c, a)] == [0, 0, 0, 29]
    assert cached(engine, other) == 0
    # 10 slots were free, but not together: 13 came from the end of b.
    assert [cached(engine, one) for one in (a, c, b)] == [29, 29, 17]


def test_a_preempted_sequence_finds_its_own_tokens_again() -> None:
    def rows(prefix_cache: bool) -> tuple[int, int]:
        requests = [make_request(str(n), [n + 1, *range(1, 20)], max_tokens=40) for n in range(3)]
        speculator = ScriptedSpeculator(MODEL, length=0, harvest_k=1)
        runner = FakeRunner(MODEL, num_slots=150)
        engine = make_engine(MODEL, speculator, runner=runner, budget=1, prefix_cache=prefix_cache)
        for request_id, reply in run(engine, *requests).items():
            assert reply.visible == expected(requests[int(request_id)])
        # Each position was harvested once, or not at all where another sequence had computed it.
        assert sum(len(harvest.token_ids) for harvest in speculator.harvests) == 3 * (20 + 40 - 1)
        return engine.stats().num_preemptions, engine.stats().num_rows

    (cold_preemptions, cold_rows), (preemptions, warm_rows) = rows(False), rows(True)
    assert cold_preemptions > 0
    assert preemptions > 0
    assert 3 * 59 <= warm_rows < cold_rows


@pytest.mark.parametrize("policy", Speculator().policies)
def test_no_policy_minds_a_prompt_without_harvest(policy: str) -> None:
    """Rows from the cache are not harvested: the drafts may be colder, the reply is the same, and nothing fails."""
    engine = make_engine(MODEL, Speculator(policy=policy, budget=12, harvest_k=4), budget=12)
    request = make_request(prompt=[1, 2, 3, 4] * 8, max_tokens=40)
    for _ in range(3):
        assert run(engine, request)["r"].visible == expected(request)
    longer = make_request(prompt=[*request.prompt_token_ids, *expected(request)[1], 1, 2], max_tokens=40)
    assert run(engine, longer)["r"].visible == expected(longer)
    assert engine.stats().num_draft_errors == 0
    assert engine.stats().prefix_cache_hits > 0


def test_harvested_positions_are_those_of_the_tokens_behind_the_cached_ones() -> None:
    speculator = ScriptedSpeculator(MODEL, length=0, harvest_k=2)
    engine = make_engine(MODEL, speculator)
    prompt = list(range(1, 31))
    run(engine, make_request(prompt=prompt, max_tokens=1))
    speculator.harvests.clear()
    run(engine, make_request(prompt=[*prompt[:20], 40, 41, 42], max_tokens=2))
    (first, second) = speculator.harvests
    assert first.token_ids.tolist() == [40, 41, 42]
    assert first.previous_ids.tolist() == [prompt[19], 40, 41]
    assert first.origin is not None
    assert first.origin.positions.tolist() == [20, 21, 22]
    assert second.origin is not None
    assert second.origin.positions.tolist() == [23]


def test_a_step_never_writes_to_what_is_shared() -> None:
    """The runner refuses it; here three share a prompt, and their slots of it are the same."""
    shared: list[set[int]] = []

    def look(batch: StepBatch) -> None:
        if len(batch.sequences) == 3:
            shared.append(set.intersection(*(set(step.context_slots.tolist()) for step in batch.sequences)))

    runner = FakeRunner(MODEL, on_step=look)
    engine = make_engine(MODEL, runner=runner)
    prompt = tuple(range(1, 31))
    run(engine, make_request("warm", prompt, max_tokens=1))
    requests = [make_request(str(n), prompt, max_tokens=30, temperature=0.8, seed=n) for n in range(3)]
    for request_id, reply in run(engine, *requests).items():
        assert reply.visible == expected(requests[int(request_id)])
    assert shared
    assert all(len(slots) >= 29 for slots in shared)
