"""Log-probabilities with drafts are those without, and those of the model's own forward, unprocessed."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from engine_helpers import run
from fakes import FakeTokenizer
from tiny_models import tiny_model

from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.local import LocalRunner

_POLICIES = ("autoregressive", "chain", "goose", "anisotropic")
_PROMPT = (17, 40, 8, 90, 17, 40, 8, 90, 17, 40, 8)
_MAX_TOKENS = 24
_TOLERANCE = 1e-3

_ASKED: dict[str, dict[str, Any]] = {
    "greedy-5": {"temperature": 0.0, "logprobs": 5},
    "greedy-0": {"temperature": 0.0, "logprobs": 0},
    "sampled-20": {"temperature": 0.8, "top_p": 0.9, "logprobs": 20},
    # What is asked of the choice does not show in them.
    "processed-3": {"temperature": 0.4, "repetition_penalty": 1.2, "logit_bias": ((17, 6.0),), "logprobs": 3},
    # It repeats itself, and whoever drafts is right.
    "looping-4": {"temperature": 0.0, "logit_bias": ((17, 30.0),), "logprobs": 4},
    "greedy-none": {"temperature": 0.0},
    "sampled-none": {"temperature": 0.8},
}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(family: str) -> LocalRunner:
    return LocalRunner(tiny_model(family), model_id=family, num_slots=1024)


def _request(name: str, **fields: Any) -> GenerationRequest:
    sampling = SamplingParams(**{"seed": 1, "max_tokens": _MAX_TOKENS, **_ASKED[name], **fields})
    return GenerationRequest(request_id=name, prompt_token_ids=_PROMPT, sampling=sampling)


def _replies(
    runner: LocalRunner, policy: str, *requests: GenerationRequest
) -> dict[str, tuple[list[int], list[TokenLogprobs] | None]]:
    engine = Engine(runner, Speculator(policy=policy, budget=24, harvest_k=8), FakeTokenizer(), EngineConfig(budget=64))
    replies = run(engine, *requests)
    if policy != "autoregressive" and len(requests) > 1:
        assert engine.stats().num_accepted_tokens > 0
    return {name: (reply.token_ids, reply.logprobs) for name, reply in replies.items()}


def _assert_close(found: list[TokenLogprobs], expected: list[TokenLogprobs]) -> None:
    assert [one.token_id for one in found] == [one.token_id for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=_TOLERANCE)
        assert [logprob for _, logprob in one.top] == pytest.approx([lp for _, lp in other.top], abs=_TOLERANCE)


def _own(family: str, output: list[int], count: int, *, prompt: Sequence[int] = _PROMPT) -> list[TokenLogprobs]:
    """Of one plain forward over prompt and output."""
    with torch.inference_mode():
        logits = tiny_model(family)(input_ids=torch.tensor([[*prompt, *output]])).logits[0]
    found = []
    for place, token in enumerate(output, len(prompt) - 1):
        logprobs = logits[place].log_softmax(-1)
        best = logprobs.topk(count)
        top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        found.append(TokenLogprobs(token, float(logprobs[token]), top))
    return found


@pytest.mark.parametrize("policy", _POLICIES)
def test_they_are_those_of_a_plain_forward_alone_and_together(family: str, runner: LocalRunner, policy: str) -> None:
    together = _replies(runner, policy, *(_request(name) for name in _ASKED))
    for name, asked in _ASKED.items():
        token_ids, logprobs = together[name]
        if "logprobs" not in asked:
            assert logprobs is None
            continue
        assert logprobs is not None
        assert len(token_ids) == _MAX_TOKENS
        expected = _own(family, token_ids, asked["logprobs"])
        _assert_close(logprobs, expected)
        assert {len(one.top) for one in logprobs} == {asked["logprobs"]}
        alone = _replies(runner, policy, _request(name))[name]
        assert alone[0] == token_ids
        assert alone[1] is not None
        _assert_close(alone[1], expected)


def test_b11_they_are_neither_zero_nor_shifted(runner: LocalRunner) -> None:
    # llama.cpp 27972, vllm 17876
    token_ids, logprobs = _replies(runner, "goose", _request("sampled-20"))["sampled-20"]
    assert logprobs is not None
    assert [one.token_id for one in logprobs] == token_ids
    assert all(one.logprob < 0 for one in logprobs)
    for one in logprobs:
        assert dict(one.top).get(one.token_id, one.logprob) == one.logprob


@pytest.mark.parametrize(("policy", "num_slots"), [("autoregressive", 1024), ("goose", 1024), ("anisotropic", 160)])
def test_prompts_are_scored_once_in_chunks_cached_and_preempted(policy: str, num_slots: int) -> None:
    draw = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, 128, (length,), generator=draw).tolist() for length in (1, 2, 30, 61, 61, 45)]
    # A beginning that the prefix cache would know.
    prompts[4][:60] = prompts[3][:60]
    requests = [
        GenerationRequest(
            request_id=str(place),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(
                temperature=0.0, max_tokens=30, logprobs=place % 3, prompt_logprobs=None if place == 2 else place
            ),
        )
        for place, prompt in enumerate(prompts)
    ]
    runner = LocalRunner(tiny_model("llama"), model_id="llama", num_slots=num_slots)
    engine = Engine(
        runner,
        Speculator(policy=policy, budget=8, harvest_k=8),
        FakeTokenizer(),
        EngineConfig(budget=8, max_batch_rows=24),
    )
    for _ in range(2):
        replies = run(engine, *requests)
        for place, prompt in enumerate(prompts):
            found = replies[str(place)].prompt_logprobs
            if place == 2:
                assert found is None
                continue
            assert found is not None
            _assert_close(list(found), _own("llama", prompt[1:], place, prompt=prompt[:1]))
    assert (engine.stats().num_preemptions > 0) == (num_slots < 1024)


@pytest.mark.parametrize("policy", _POLICIES)
@pytest.mark.parametrize("num_held", [1, 2, 3])
def test_b6_they_are_cut_with_text_and_ids_at_a_stop_string(runner: LocalRunner, policy: str, num_held: int) -> None:
    # vllm 47616: of the tokens of the stop string, held back over steps, none is left
    full = _replies(runner, "autoregressive", _request("greedy-5"))["greedy-5"]
    ids = full[0]
    place = next(
        i for i in range(4, len(ids)) if ids[i : i + num_held] not in [ids[j : j + num_held] for j in range(i)]
    )
    stop = FakeTokenizer().decode(ids[place : place + num_held])
    cut = _replies(runner, policy, _request("greedy-5", stop=(stop,)))["greedy-5"]
    assert cut[0] == ids[:place]
    assert cut[1] is not None
    assert full[1] is not None
    _assert_close(cut[1], full[1][:place])
