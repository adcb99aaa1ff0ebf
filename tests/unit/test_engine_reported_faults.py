"""Faults that users of other servers reported, none of which the engine may have. Each test names its report."""

import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model, scripted_model

from goose.speculator import Speculator
from goose_ray.errors import InvalidRequestError

STOP = 9


def test_b1_stops_at_an_eos_in_the_middle_though_drafts_run_past_it() -> None:
    # transformers 47912
    output = [5, 6, EOS, 7, 8, 9, 10]
    reply = run(make_engine(scripted_model(output)), make_request(max_tokens=20))["r"]
    assert reply.visible == ("\x05\x06", [5, 6, EOS], "stop", None)


def test_b2_a_prompt_with_eos_in_it_is_continued_as_plain_decoding_would() -> None:
    # transformers 31301: the n-gram match copies the prompt's EOS and what follows.
    turn = [4, 5, 6, EOS, 7, 8]
    prompt = [*turn, *turn, 4, 5]
    model = scripted_model([6, EOS, 7, 8])
    for policy in Speculator().policies:
        reply = run(make_engine(model, Speculator(policy=policy)), make_request(prompt=prompt, max_tokens=20))["r"]
        assert reply.token_ids == [6, EOS]
        assert reply.finish_reason == "stop"


def test_b3_a_stop_token_inside_the_run_and_the_limit_behind_it() -> None:
    # sglang 31599: step output [10, 11, STOP, 20, 21, 22], max_tokens 5
    model = scripted_model([10, 11, STOP, 20, 21, 22])
    reply = run(make_engine(model), make_request(max_tokens=5, stop_token_ids=(STOP,)))["r"]
    assert (reply.token_ids, reply.finish_reason, reply.stop_reason) == ([10, 11, STOP], "stop", STOP)


def test_b4_eos_first_in_an_accepted_run() -> None:
    # sglang 30291: 8 tokens out, max_tokens 10, accepted [EOS, t, t']
    model = scripted_model([*range(20, 28), EOS, 30, 31])
    speculator = ScriptedSpeculator(model, length=7)
    engine = make_engine(model, speculator)
    reply = run(engine, make_request(max_tokens=10))["r"]
    assert [record.sequences[0].committed for record in engine.trace.last()] == [8, 1]
    assert (len(reply.token_ids), reply.finish_reason) == (9, "stop")


def test_b5_a_stop_string_and_eos_in_one_step() -> None:
    # sglang 28802
    model = scripted_model([*b"a!", EOS])
    runner = FakeRunner(model, vocab_size=256)
    reply = run(make_engine(model, runner=runner), make_request(stop=("!",)))["r"]
    assert reply.visible == ("a", [97], "stop", "!")
    runner = FakeRunner(scripted_model([97, EOS, 33]), vocab_size=256)
    reply = run(make_engine(scripted_model([97, EOS, 33]), runner=runner), make_request(stop=("!",)))["r"]
    assert reply.visible == ("a", [97, EOS], "stop", None)


@pytest.mark.parametrize("length", [0, 1, 3, 8])
def test_b6_ids_and_text_are_cut_together_however_many_come_in_a_step(length: int) -> None:
    # vllm 47616
    model = scripted_model(list(b"so ha ha ha ha"))
    engine = make_engine(
        model, ScriptedSpeculator(model, length=length, vocab_size=256), runner=FakeRunner(model, vocab_size=256)
    )
    reply = run(engine, make_request(stop=(" ha ha ha",)))["r"]
    assert reply.visible == ("so", list(b"so"), "stop", " ha ha ha")
    assert reply.last is not None
    assert reply.last.stats.committed == 2
    assert reply.last.stats.accepted <= 2
    assert engine.stats().generation_tokens == 2


def test_b7_delivered_tokens_are_what_is_counted() -> None:
    # ik_llama.cpp 2358: the limit in the middle of an accepted block
    model = looping_model()
    speculator = ScriptedSpeculator(model)
    engine = make_engine(model, speculator)
    reply = run(engine, make_request(max_tokens=11))["r"]
    assert reply.last is not None
    assert len(reply.token_ids) == reply.last.stats.committed == engine.stats().generation_tokens == 11
    assert sum(len(outcome.committed_ids) for outcome in speculator.outcomes) == 11


def test_b8_only_committed_tokens_are_accepted() -> None:
    # vllm 56101: [d1, d2, EOS, d4, d5, bonus]
    model = scripted_model([5, 6, EOS, 7, 8, 9])
    speculator = ScriptedSpeculator(model, length=5)
    engine = make_engine(model, speculator)
    run(engine, make_request())
    stats = engine.stats()
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.accepted_per_position) == (5, 3, (1, 1, 1))
    (outcome,) = speculator.outcomes
    assert outcome.accepted_nodes.tolist() == [1, 2, 3]
    assert outcome.committed_ids.tolist() == [5, 6, EOS]
    assert outcome.bonus_id == 7


def test_b9_a_draft_of_end_tokens_leaves_no_tail_behind_the_first() -> None:
    # llama.cpp 28232
    model = scripted_model([EOS])
    engine = make_engine(model, ScriptedSpeculator(model, length=48))
    assert run(engine, make_request("a", max_tokens=60))["a"].token_ids == [EOS]
    assert run(engine, make_request("b", max_tokens=60, ignore_eos=True))["b"].token_ids == [EOS] * 60
    assert run(engine, make_request("a", max_tokens=60))["a"].token_ids == [EOS]


def test_b14_a_request_id_used_again_is_a_new_request() -> None:
    # sglang 38129
    model = looping_model()
    engine = make_engine(model, Speculator(policy="goose"))
    first, second = make_request("same", (1, 2, 3, 4, 5)), make_request("same", (7, 8), temperature=1.0, seed=3)
    for request in (first, second, first):
        expected = plain_reply(model, request, FakeTokenizer(specials=(EOS,)))
        assert run(engine, request)["same"].visible == expected


def test_b15_a_finished_request_does_not_slow_the_next() -> None:
    # llama.cpp 27852: a long request, then a short one in the same slots
    model = looping_model()
    short = make_request("short", (3, 4), max_tokens=40)
    fresh = run(make_engine(model, Speculator(policy="chain")), short)["short"].last
    engine = make_engine(model, Speculator(policy="chain"))
    run(engine, make_request("long", range(1, 60), max_tokens=150))
    after = run(engine, short)["short"].last
    assert fresh is not None
    assert after is not None
    assert after.stats == fresh.stats


def test_b12_what_the_pool_cannot_hold_is_refused_and_what_it_just_holds_is_served() -> None:
    # TensorRT-LLM 16826
    model = looping_model()
    engine = make_engine(model, runner=FakeRunner(model, num_slots=64))
    assert engine.max_model_len == 64
    with pytest.raises(InvalidRequestError, match="KV cache holds 64 tokens, but 65 were requested"):
        engine.add_request(make_request(prompt=[1] * 60, max_tokens=5))
    request = make_request(prompt=[1] * 60, max_tokens=4)
    assert run(engine, request)["r"].visible == plain_reply(model, request, FakeTokenizer(specials=(EOS,)))


def test_b18_ten_thousand_bad_requests_leave_every_count_where_it_was() -> None:
    # DeepSpeed-MII 489
    engine = make_engine()
    before = engine.stats()
    for number in range(10_000):
        with pytest.raises(InvalidRequestError):
            engine.add_request(make_request(str(number), prompt=() if number % 2 else [1] * 300))
    assert engine.stats() == before
    engine.check_integrity()
