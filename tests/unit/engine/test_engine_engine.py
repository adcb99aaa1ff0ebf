"""Engine: whole requests over a runner without a model."""

import itertools
from dataclasses import replace

import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.speculator import Speculator
from goose_ray.engine.request import GenerationRequest, SourceStats
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import StepBatch, StepOutput
from goose_ray.errors import EngineDeadError, InvalidRequestError, OverloadedError


def test_a_request_gets_the_tokens_of_plain_decoding() -> None:
    model, request = looping_model(), make_request(max_tokens=30)
    replies = run(make_engine(model), request)
    assert replies["r"].visible == plain_reply(model, request, FakeTokenizer(specials=(EOS,)))


def test_all_drafts_right_means_few_steps() -> None:
    # 1 anchor + 8 drafts: 9 tokens a step.
    engine = make_engine()
    last = run(engine, make_request(max_tokens=27))["r"].last
    assert last is not None
    assert (last.stats.steps, last.stats.drafted, last.stats.accepted, last.stats.committed) == (3, 24, 24, 27)
    assert last.stats.tau == 9.0
    assert last.stats.by_source == {"script": SourceStats(24, 24)}


def test_all_drafts_wrong_means_a_token_a_step() -> None:
    model = looping_model()
    last = run(make_engine(model, ScriptedSpeculator(model, num_right=0)), make_request(max_tokens=20))["r"].last
    assert last is not None
    assert (last.stats.steps, last.stats.accepted, last.stats.committed) == (20, 0, 20)


def test_a_one_token_prompt_is_an_anchor_without_context() -> None:
    model, request = looping_model(), make_request(prompt=(5,), max_tokens=8)
    engine = make_engine(model)
    assert run(engine, request)["r"].visible == plain_reply(model, request, FakeTokenizer(specials=(EOS,)))
    assert engine.trace.last()[0].sequences[0].prefill_rows == 0


def test_one_token_of_output_needs_one_step_and_no_draft() -> None:
    engine = make_engine()
    run(engine, make_request(max_tokens=1))
    assert engine.stats().num_steps == 1
    assert engine.stats().num_draft_tokens == 0


def test_cancelling_frees_everything_at_once() -> None:
    engine = make_engine(max_running_requests=1)
    speculator = engine._speculator
    assert isinstance(speculator, ScriptedSpeculator)
    engine.add_request(make_request("running", max_tokens=100))
    engine.add_request(make_request("waiting"))
    engine.step()
    assert engine.stats().kv_slots_used > 0
    engine.cancel("running")
    engine.cancel("waiting")
    engine.cancel("unknown")
    stats = engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting, stats.kv_slots_used) == (0, 0, 0)
    assert stats.finished_by_reason == {"abort": 2}
    assert speculator.tokens == {}
    assert not engine.has_work
    assert engine.step() == []


def test_abort_all_gives_everyone_a_last_output() -> None:
    engine = make_engine(max_running_requests=1)
    for name in "ab":
        engine.add_request(make_request(name, max_tokens=100))
    engine.step()
    outputs = engine.abort_all()
    assert [(output.request_id, output.finish_reason) for output in outputs] == [("a", "abort"), ("b", "abort")]
    assert engine.stats().kv_slots_used == 0


@pytest.mark.parametrize(
    ("request_", "param", "code", "message"),
    [
        (make_request(prompt=()), "prompt", "invalid_value", "at least one token"),
        (make_request(prompt=(1, 64)), "prompt", "invalid_value", "from 0 to 63, not 64"),
        (make_request(prompt=(1, -1)), "prompt", "invalid_value", "from 0 to 63, not -1"),
        (make_request(prompt=(1, 2**70)), "prompt", "invalid_value", "from 0 to 63, not 1180591620717411303424"),
        (make_request(stop_token_ids=(63, 64)), "stop_token_ids", "invalid_value", "from 0 to 63, not 64"),
        (make_request(policy="psychic"), "policy", "invalid_value", "policy must be one of scripted, not 'psychic'"),
        (
            make_request(prompt=[1] * 50, max_tokens=51),
            None,
            "context_length_exceeded",
            r"maximum context length is 100 tokens, but 101 were requested \(50 in the prompt, 51 for the completion\)",
        ),
        (make_request(prompt=[1] * 200), None, "context_length_exceeded", "216 were requested"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_and_leaves_nothing(
    request_: GenerationRequest, param: str | None, code: str | None, message: str
) -> None:
    engine = make_engine(max_model_len=100)
    with pytest.raises(InvalidRequestError, match=message) as refusal:
        engine.add_request(request_)
    assert (refusal.value.param, refusal.value.code) == (param, code)
    assert not engine.has_work
    run(engine, make_request(prompt=[1] * 50, max_tokens=50))


def test_a_request_id_in_use_is_refused_and_the_first_goes_on() -> None:
    engine = make_engine()
    engine.add_request(make_request("a"))
    with pytest.raises(InvalidRequestError, match="'a' is in use"):
        engine.add_request(make_request("a", (4, 5)))
    assert engine.step()[0].request_id == "a"


@pytest.mark.parametrize(("max_running", "max_waiting"), [(2, 3), (2, 0)])
def test_more_than_may_wait_is_refused(max_running: int, max_waiting: int) -> None:
    engine = make_engine(max_running_requests=max_running, max_waiting_requests=max_waiting)
    for number in range(max_running + max_waiting):
        engine.add_request(make_request(str(number)))
    with pytest.raises(OverloadedError, match=f"holds {max_running + max_waiting} requests") as refusal:
        engine.add_request(make_request("one more"))
    assert refusal.value.retry_after_s > 0
    engine.cancel("0")
    engine.add_request(make_request("one more"))


def test_a_failing_forward_kills_the_engine_for_good() -> None:
    def fail(batch: StepBatch) -> None:
        if batch.step_id == 1:
            raise MemoryError("out of memory")

    engine = make_engine(runner=FakeRunner(on_step=fail))
    engine.add_request(make_request(max_tokens=100))
    engine.step()
    engine.check_health()
    with pytest.raises(EngineDeadError, match="step 1 failed: out of memory") as death:
        engine.step()
    assert isinstance(death.value.__cause__, MemoryError)
    for verb in (engine.step, engine.check_health, lambda: engine.add_request(make_request("b"))):
        with pytest.raises(EngineDeadError, match="out of memory"):
            verb()
    engine.cancel("r")


def test_a_dead_runner_shows_in_the_health() -> None:
    runner = FakeRunner()
    engine = make_engine(runner=runner)
    engine.check_health()
    runner.failure = EngineDeadError("rank 1 is gone")
    with pytest.raises(EngineDeadError, match="rank 1"):
        engine.check_health()


def test_a_reply_that_cannot_be_decoded_aborts_its_request_alone() -> None:
    model = looping_model()
    tokenizer = FakeTokenizer(specials=(EOS,))
    bad, good = make_request("bad", (1, 2), max_tokens=40), make_request("good", (3, 4), max_tokens=40)
    expected = plain_reply(model, good, tokenizer)
    only_in_bad = set(plain_reply(model, bad, tokenizer)[1]) - set(expected[1])
    tokenizer.fails_on = min(only_in_bad)
    engine = make_engine(model, ScriptedSpeculator(model, length=0), tokenizer=tokenizer)
    replies = run(engine, bad, good)
    assert replies["bad"].finish_reason == "abort"
    assert replies["good"].visible == expected
    assert engine.stats().finished_by_reason == {"abort": 1, "length": 1}
    engine.check_health()


def test_preemption_changes_no_reply_and_is_counted() -> None:
    model = looping_model()
    requests = [make_request(str(n), range(1, 4 + n), max_tokens=40, temperature=n % 2, seed=n) for n in range(5)]
    engine = make_engine(model, Speculator(policy="goose"), runner=FakeRunner(model, num_slots=80), budget=8)
    replies = run(engine, *requests)
    for request in requests:
        expected = plain_reply(model, request, FakeTokenizer(specials=(EOS,)))
        assert replies[request.request_id].visible == expected
    assert engine.stats().num_preemptions > 0


def test_the_speculator_hears_of_every_row_once_and_in_order() -> None:
    model = looping_model()
    speculator = ScriptedSpeculator(model, harvest_k=3, length=2)
    prompt = tuple(range(1, 30))
    run(make_engine(model, speculator, max_batch_rows=8), make_request(prompt=prompt, max_tokens=9))
    tokens = [token for harvest in speculator.harvests for token in harvest.token_ids.tolist()]
    previous = [token for harvest in speculator.harvests for token in harvest.previous_ids.tolist()]
    assert tokens[: len(prompt)] == list(prompt)
    assert previous[: len(prompt)] == [-1, *prompt[:-1]]
    # every draft is right, so the rest is the output without its last token, which is never computed
    assert (
        tokens[len(prompt) :] == plain_reply(model, make_request(prompt=prompt, max_tokens=9), FakeTokenizer())[1][:-1]
    )
    assert all(harvest.top_ids.shape == (len(harvest.token_ids), 3) for harvest in speculator.harvests)


def test_a_recomputed_prefix_is_not_harvested_again() -> None:
    model = looping_model()
    requests = [make_request(str(n), range(n + 1, n + 12), max_tokens=40) for n in range(3)]
    speculator = ScriptedSpeculator(model, num_right=0, length=0, harvest_k=1)
    engine = make_engine(model, speculator, runner=FakeRunner(model, num_slots=60), budget=1)
    run(engine, *requests)
    assert engine.stats().num_preemptions > 0
    rows = sum(len(harvest.token_ids) for harvest in speculator.harvests)
    assert rows == sum(11 + 40 - 1 for _ in requests)


@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize("num_requests", [3, 4])
def test_prompts_of_many_requests_at_a_time_are_harvested_where_they_are_needed(
    num_requests: int, needed: bool
) -> None:
    model = looping_model()
    speculator = ScriptedSpeculator(model, num_right=0, length=0, harvest_k=1, needs_prompts=needed)
    requests = [make_request(str(n), range(n + 1, n + 12), max_tokens=5) for n in range(num_requests)]
    run(make_engine(model, speculator), *requests)
    rows = sum(len(harvest.token_ids) for harvest in speculator.harvests)
    # The last token is never computed; the anchor, the prompt's last, is a tree's.
    of_prompt = 11 if needed or num_requests == 3 else 1
    assert rows == num_requests * (of_prompt + 5 - 1)


def test_the_speculator_is_told_what_ends_a_draft_and_whose_it_is() -> None:
    speculator = ScriptedSpeculator(looping_model())
    engine = make_engine(speculator=speculator)
    engine.add_request(make_request("a", stop_token_ids=(7,)))
    engine.add_request(make_request("b", stop_token_ids=(7,), ignore_eos=True))
    engine.step()
    assert speculator.stop_token_ids == {"a": frozenset({EOS, 7}), "b": frozenset({7})}


def test_latency_is_measured_from_arrival() -> None:
    ticks = itertools.count(100.0)
    engine = make_engine(clock=lambda: next(ticks))
    engine.add_request(make_request(max_tokens=9), arrived_s=50.0)
    engine.step()
    stats = engine.stats()
    assert (stats.queue_seconds.count, stats.ttft_seconds.count, stats.e2e_seconds.count) == (1, 1, 1)
    assert 50.0 < stats.queue_seconds.sum < stats.ttft_seconds.sum <= stats.e2e_seconds.sum < 70.0
    assert stats.inter_token_seconds.count == 8


def test_counters_of_a_run_add_up() -> None:
    engine = make_engine()
    replies = run(engine, *(make_request(name, (1, 2, 3), max_tokens=20) for name in "abc"))
    stats = engine.stats()
    lasts = [reply.last for reply in replies.values() if reply.last is not None]
    assert stats.prompt_tokens == 9
    assert stats.generation_tokens == sum(last.stats.committed for last in lasts) == 60
    assert stats.num_draft_tokens == sum(last.stats.drafted for last in lasts)
    assert stats.num_accepted_tokens == sum(last.stats.accepted for last in lasts) == sum(stats.accepted_per_position)
    assert stats.num_steps == len(engine.trace.last())
    assert stats.num_rows == sum(record.rows for record in engine.trace.last())
    assert stats.forward_seconds == pytest.approx(0.001 * stats.num_steps)
    assert stats.finished_by_reason == {"length": 3}


def test_a_seeded_reply_is_the_same_under_every_policy() -> None:
    model = looping_model()
    request = replace(make_request(max_tokens=40), sampling=SamplingParams(max_tokens=40, temperature=0.8, seed=11))
    replies = []
    for policy, budget, rows in (("autoregressive", 1, 8), ("chain", 6, 16), ("goose", 20, 64)):
        engine = make_engine(model, Speculator(policy=policy, budget=budget), max_batch_rows=rows, budget=budget)
        replies.append(run(engine, request)["r"].visible)
    assert replies[0] == replies[1] == replies[2] == plain_reply(model, request, FakeTokenizer(specials=(EOS,)))


def test_shutdown_frees_the_runner() -> None:
    runner = FakeRunner()
    make_engine(runner=runner).shutdown()
    assert runner.is_shut_down


def test_a_runner_that_breaks_its_contract_is_found_out() -> None:
    class Silent(FakeRunner):
        def execute(self, batch: StepBatch) -> StepOutput:
            return replace(super().execute(batch), paths=(None,) * len(batch.sequences))

    engine = make_engine(runner=Silent())
    engine.add_request(make_request())
    with pytest.raises(EngineDeadError, match="the runner gave None for a tree step"):
        engine.step()


def test_tokens_are_python_integers() -> None:
    # What is serialised to JSON must not be numpy's.
    (output,) = [run(make_engine(), make_request(max_tokens=3))["r"].last]
    assert output is not None
    assert all(type(token) is int for token in output.token_ids)
    assert type(output.stats.committed) is int
