"""Where an answer ends when drafts run on behind its end: B1 to B5 and B9."""

from dataclasses import replace

import pytest
import torch
from engine_helpers import Reply, ScriptedSpeculator, make_request, plain_reply, run
from fakes import EOS, FakeTokenizer, NextToken, looping_model, scripted_model
from scripted_engine import forced, modelled
from tiny_models import tiny_model

from goose.policies.registry import POLICIES
from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.drafting import BatchSpeculator
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.step import StepBatch, StepOutput
from goose_ray.runner.local import LocalRunner

# From plain decoding to a block of nine.
LENGTHS = (0, 1, 2, 3, 5, 8)
PERIODIC = (17, 40, 8, 90, 17, 40, 8, 90, 17, 40, 8)
HA, XE, ND = 256, 257, 258
PIECES = (" ha", "xE", "ND")


def answer(output: list[int], request: GenerationRequest, length: int) -> Reply:
    return run(forced(output, length=length, pieces=PIECES), request)["r"]


class EndingWith:
    """The runner of a model with another end-of-sequence token."""

    def __init__(self, runner: LocalRunner, eos: int) -> None:
        self._runner = runner
        self.spec = replace(runner.spec, eos_token_ids=(eos,))

    def execute(self, batch: StepBatch) -> StepOutput:
        return self._runner.execute(batch)

    def check_health(self) -> None:
        self._runner.check_health()

    def shutdown(self) -> None:
        """The next one needs it."""


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(tiny_model("llama"), model_id="llama", num_slots=512)


@pytest.fixture(scope="module")
def endless() -> list[int]:
    """Greedy output of a model without an end-of-sequence token, by transformers."""
    ids = tiny_model("llama").generate(torch.tensor([PERIODIC]), do_sample=False, max_new_tokens=24)
    return [int(token) for token in ids[0, len(PERIODIC) :]]


def _all_right(endless: list[int]) -> BatchSpeculator:
    return ScriptedSpeculator(scripted_model([*endless, 0]), length=8, vocab_size=128)


@pytest.mark.parametrize("policy", ["drafts that are right", *POLICIES])
def test_b01_eos_in_the_middle_of_the_output(runner: LocalRunner, endless: list[int], policy: str) -> None:
    """Tokens of the output are declared the end in turn, the first one too."""
    for eos in dict.fromkeys(endless[place] for place in (0, 1, 4, 9)):
        drafts: BatchSpeculator = Speculator(policy=policy, budget=24) if policy in POLICIES else _all_right(endless)
        engine = Engine(EndingWith(runner, eos), drafts, FakeTokenizer(), EngineConfig(budget=24))
        replies = run(
            engine,
            make_request("eos", PERIODIC, max_tokens=24),
            make_request("ignored", PERIODIC, max_tokens=24, ignore_eos=True),
            make_request("stop", PERIODIC, max_tokens=24, ignore_eos=True, stop_token_ids=(eos,)),
        )
        until_eos = endless[: endless.index(eos) + 1]
        found = {name: (reply.token_ids, reply.finish_reason, reply.stop_reason) for name, reply in replies.items()}
        assert found == {
            "eos": (until_eos, "stop", None),
            "ignored": (endless, "length", None),
            "stop": (until_eos, "stop", eos),
        }
        assert engine.stats().num_draft_errors == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stop_token_ids", [(), (44,)])
@pytest.mark.parametrize("last_is_stop", [False, True])
def test_b02_a_match_in_the_prompt_runs_over_a_stop_token(
    policy: str, stop_token_ids: tuple[int, ...], last_is_stop: bool
) -> None:
    """What the match copies is cropped at the stop token, unless such tokens are ignored."""
    stop = stop_token_ids[0] if stop_token_ids else EOS
    turn = [5, 6, 7, 8, stop, 21, 22]
    prompt = [*turn, *turn, *turn[: 5 if last_is_stop else 3]]
    copy = [*turn[5 if last_is_stop else 3 :], *turn, *turn, *turn]
    copying = scripted_model(copy)
    ends = {stop, EOS}
    behind_ends = 0

    def look(batch: StepBatch) -> None:
        nonlocal behind_ends
        for step in batch.sequences:
            if step.tree is not None:
                parents = step.tree.parents[1:]
                behind = [p > 0 and int(step.tree.token_ids[p]) in ends for p in parents.tolist()]
                behind_ends += sum(behind)
                assert step.sampling.ignore_eos or not any(behind), "a draft runs past a stop token"

    for model in (copying, looping_model()):
        engine = modelled(model, Speculator(policy=policy, budget=30, harvest_k=4), on_step=look)
        for name in ("first", "with the first one's text kept"):
            request = make_request(name, prompt, max_tokens=12, stop_token_ids=stop_token_ids)
            expected = plain_reply(model, request, FakeTokenizer(specials=(EOS,)))
            assert run(engine, request)[name].visible == expected
    if policy in ("chain", "goose", "suffix", "balanced") and not stop_token_ids:
        engine = modelled(copying, Speculator(policy=policy, budget=30, harvest_k=4), on_step=look)
        reply = run(engine, make_request(prompt=prompt, max_tokens=20, ignore_eos=True))["r"]
        assert reply.token_ids == copy[:20]
        assert policy == "balanced" or behind_ends > 0, "the match did not copy the stop token"


@pytest.mark.parametrize("length", LENGTHS)
def test_b03_stop_token_inside_an_accepted_block(length: int) -> None:
    # sglang 31599
    request = make_request(max_tokens=5)
    assert answer([10, 11, EOS, 20, 21, 22], request, length).visible == ("\n\x0b", [10, 11, EOS], "stop", None)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("at", range(6))
def test_b03_the_stop_token_at_any_place_before_behind_and_on_the_limit(at: int, length: int) -> None:
    output = [*range(97, 97 + at), EOS, *range(110, 120)]
    found = answer(output, make_request(max_tokens=4), length)
    kept = min(at + 1, 4)
    assert (found.token_ids, found.finish_reason) == (output[:kept], "stop" if at < 4 else "length")


@pytest.mark.parametrize(("length", "steps"), [(3, 3), (7, 2), (8, 1), (0, 9)])
def test_b04_eos_first_in_the_last_accepted_block(length: int, steps: int) -> None:
    # sglang 30291: 8 tokens out, 10 allowed, then [EOS, t, t']
    output = [*range(97, 105), EOS, 120, 121]
    found = answer(output, make_request(max_tokens=10), length)
    assert found.visible == ("abcdefgh", output[:9], "stop", None)
    assert found.last is not None
    assert (found.last.stats.committed, found.last.stats.steps) == (9, steps)


@pytest.mark.parametrize("length", LENGTHS)
def test_b05_a_stop_string_and_eos_in_one_step(length: int) -> None:
    # sglang 28802
    request = make_request(stop=("END",))
    assert answer([97, XE, ND, EOS, 98], request, length).visible == ("ax", [97, XE], "stop", "END")
    assert answer([97, EOS, XE, ND], request, length).visible == ("a", [97, EOS], "stop", None)


@pytest.mark.parametrize("length", LENGTHS)
def test_b05_neighbours(length: int) -> None:
    # The stop token is the very first one; it is the one that would complete the stop string.
    assert answer([EOS, 97], make_request(stop=("a",)), length).visible == ("", [EOS], "stop", None)
    request = make_request(stop=("END",), stop_token_ids=(ND,))
    assert answer([97, XE, ND, 98], request, length).visible == ("axE", [97, XE, ND], "stop", ND)
    # Of two stop strings the first to be complete; and the limit on the same token as the stop string.
    request = make_request(stop=("ENDb", "xE"), max_tokens=2)
    assert answer([97, XE, ND, 98], request, length).visible == ("a", [97], "stop", "xE")
    # A stop string that is the end-of-sequence token's name is no text.
    assert answer([97, EOS], make_request(stop=("<0>",)), length).visible == ("a", [97, EOS], "stop", None)


def _only_eos(count: int) -> NextToken:
    return scripted_model([97, *[EOS] * count])


@pytest.mark.parametrize("num_drafted", [1, 47, 48, 49])
def test_b09_a_draft_of_end_tokens(num_drafted: int) -> None:
    # llama.cpp 28232
    engine = forced([97, *[EOS] * 60], length=num_drafted)
    for _ in range(2):
        # An id is free again once its request has ended.
        found = run(engine, make_request(max_tokens=64))["r"]
        assert found.visible == ("a", [97, EOS], "stop", None)
        assert found.last is not None
        assert found.last.stats.committed == 2
    found = run(engine, make_request(max_tokens=4, ignore_eos=True))["r"]
    assert found.visible == ("a", [97, EOS, EOS, EOS], "length", None)


@pytest.mark.parametrize("policy", POLICIES)
def test_b09_nothing_of_a_tail_of_end_tokens_is_drafted_in_the_next_request(policy: str) -> None:
    """A reply of end tokens alone, then one that goes on otherwise from the same text."""
    engine = modelled(_only_eos(60), Speculator(policy=policy, budget=60, harvest_k=4))
    assert run(engine, make_request("a", [5, 6, 7], max_tokens=60))["a"].token_ids == [97, EOS]
    model = looping_model()
    engine = modelled(model, Speculator(policy=policy, budget=60, harvest_k=4))
    run(engine, make_request("eos", [EOS] * 48, max_tokens=30))
    request = make_request("b", [5, 6, 7, EOS, EOS], max_tokens=30)
    assert run(engine, request)["b"].visible == plain_reply(model, request, FakeTokenizer(specials=(EOS,)))
