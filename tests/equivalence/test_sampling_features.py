"""With every sampling feature, all policies give the tokens of plain decoding: alone, together, and preempted.

Plain greedy decoding is transformers' `generate` where that knows the feature, and a plain loop over the model's own
logits where it does not.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from engine_helpers import Reply, run
from fakes import FakeTokenizer
from sampling_reference import processed_logits
from tiny_models import VOCAB_SIZE, tiny_model

from goose.policies.registry import POLICIES
from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.local import LocalRunner

_POLICIES = ("autoregressive", *(policy for policy in POLICIES if policy != "autoregressive"))
_EOS = 5
_MAX_TOKENS = 32
# For all requests at once.
_NUM_SLOTS = 1024
# Periodic, so that drafts from it are right now and then.
_PROMPT = (17, 40, 8, 90, 17, 40, 8, 90, 17, 40, 8)

_ASKED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "top_p": {"temperature": 0.8, "top_p": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 4},
    "min_p": {"temperature": 0.8, "min_p": 0.1},
    "repetition": {"temperature": 0.3, "repetition_penalty": 1.1},
    "frequency": {"temperature": 0.3, "frequency_penalty": 0.5},
    "presence": {"temperature": 0.3, "presence_penalty": -0.5},
    "logit_bias": {"temperature": 0.3, "logit_bias": ((17, 5.0), (40, 2.5), (_EOS, -4.0))},
    "min_tokens": {"temperature": 0.8, "min_tokens": 12, "logit_bias": ((_EOS, 20.0),)},
    "stop_token_ids": {"temperature": 0.0, "stop_token_ids": (8,), "min_tokens": 5},
    "include_stop": {"temperature": 0.5, "stop": ("\x11",), "include_stop_str_in_output": True, "min_tokens": 3},
    "ignore_eos": {"temperature": 0.5, "ignore_eos": True, "logit_bias": ((_EOS, 6.0),)},
    "greedy-penalties": {
        "temperature": 0.0,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
    },
    "greedy-encouraged": {"temperature": 0.0, "frequency_penalty": -0.3, "logit_bias": ((17, 3.0),)},
    "greedy": {"temperature": 0.0},
    "allowed": {"temperature": 0.7, "allowed_token_ids": tuple(range(0, VOCAB_SIZE, 3))},
    "bad_words": {"temperature": 0.0, "bad_word_ids": ((17,), (40, 8), (8, 90, 17))},
    "all": {
        "temperature": 0.9,
        "top_p": 0.9,
        "top_k": 30,
        "min_p": 0.02,
        "repetition_penalty": 1.05,
        "frequency_penalty": -0.2,
        "presence_penalty": 0.2,
        "logit_bias": ((90, 2.0),),
        "min_tokens": 10,
    },
}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def runner(request: pytest.FixtureRequest) -> LocalRunner:
    return LocalRunner(_model(request.param), model_id=request.param, num_slots=_NUM_SLOTS)


def _model(family: str) -> Any:
    model = tiny_model(family)
    model.generation_config.eos_token_id = _EOS
    return model


def _request(asked: str, *, seed: int = 1) -> GenerationRequest:
    sampling = SamplingParams(**{"seed": seed, "max_tokens": _MAX_TOKENS, **_ASKED[asked]})
    return GenerationRequest(request_id=asked, prompt_token_ids=_PROMPT, sampling=sampling)


def _replies(
    runner: LocalRunner, policy: str, requests: Sequence[GenerationRequest], **config: int
) -> dict[str, tuple[Any, ...]]:
    engine = Engine(
        runner,
        Speculator(policy=policy, budget=24, harvest_k=8),
        FakeTokenizer(specials=(_EOS,)),
        EngineConfig.model_validate({"policy": policy, "budget": 24 * len(requests), **config}),
    )
    replies: dict[str, Reply] = run(engine, *requests)
    assert engine.stats().num_draft_errors == 0
    if len(requests) > 1:
        assert (engine.stats().num_accepted_tokens > 0) == (policy != "autoregressive")
        assert (engine.stats().num_preemptions > 0) == (runner.spec.num_slots < _NUM_SLOTS)
    return {name: reply.visible for name, reply in replies.items()}


@cache
def _plain(runner: LocalRunner, asked: str) -> tuple[Any, ...]:
    return _replies(runner, "autoregressive", [_request(asked)])[asked]


@pytest.mark.parametrize("policy", _POLICIES[1:])
@pytest.mark.parametrize("asked", _ASKED)
def test_alone(runner: LocalRunner, asked: str, policy: str) -> None:
    assert _replies(runner, policy, [_request(asked)])[asked] == _plain(runner, asked)


@pytest.mark.parametrize("policy", _POLICIES)
def test_together(runner: LocalRunner, policy: str) -> None:
    replies = _replies(runner, policy, [_request(asked) for asked in _ASKED])
    assert replies == {asked: _plain(runner, asked) for asked in _ASKED}


@pytest.mark.parametrize("policy", ["goose", "anisotropic"])
def test_together_short_of_room(policy: str) -> None:
    """Preempted sequences go on with the counts that they had."""
    runner = LocalRunner(_model("llama"), model_id="llama", num_slots=150)
    plain = {asked: _plain(runner, asked) for asked in _ASKED}
    engine_options = {"max_batch_rows": 40, "budget": 8}
    assert _replies(runner, policy, [_request(asked) for asked in _ASKED], **engine_options) == plain


def test_features_are_felt(runner: LocalRunner) -> None:
    """Or else that all policies agree would say nothing."""
    ids = {asked: tuple(_plain(runner, asked)[1]) for asked in _ASKED}
    free = {
        name: _replies(
            runner,
            "autoregressive",
            [
                GenerationRequest(
                    request_id="r",
                    prompt_token_ids=_PROMPT,
                    sampling=SamplingParams(seed=1, max_tokens=_MAX_TOKENS, temperature=temperature),
                )
            ],
        )["r"]
        for name, temperature in (("greedy", 0.0), ("0.3", 0.3), ("0.8", 0.8))
    }
    for asked in ("repetition", "frequency", "logit_bias"):
        assert ids[asked] != tuple(free["0.3"][1]), asked
    for asked in ("top_p", "top_k", "min_p"):
        assert ids[asked] != tuple(free["0.8"][1]), asked
    assert ids["greedy-penalties"] != ids["greedy"] != ids["greedy-encouraged"]
    assert len(ids["min_tokens"]) == 13, "the bias makes EOS certain once it is allowed"
    assert ids["min_tokens"][-1] == _EOS
    assert _EOS in ids["ignore_eos"][:-1]


def test_greedy_penalties_equal_generate() -> None:
    model = _model("llama")
    prompt = torch.tensor([_PROMPT])
    runner = LocalRunner(_model("llama"), model_id="llama", num_slots=_NUM_SLOTS)
    for penalty, min_tokens in ((1.3, 0), (1.05, 20), (0.9, 0)):
        expected = model.generate(
            prompt,
            do_sample=False,
            max_new_tokens=_MAX_TOKENS,
            repetition_penalty=penalty,
            min_new_tokens=min_tokens or None,
        )[0].tolist()
        sampling = SamplingParams(
            temperature=0.0, max_tokens=_MAX_TOKENS, repetition_penalty=penalty, min_tokens=min_tokens
        )
        request = GenerationRequest(request_id="r", prompt_token_ids=_PROMPT, sampling=sampling)
        for policy in _POLICIES:
            assert _replies(runner, policy, [request])["r"][1] == expected[len(_PROMPT) :]


@pytest.mark.parametrize("asked", ["greedy-penalties", "greedy-encouraged"])
def test_greedy_with_all_penalties_equals_a_plain_loop(asked: str) -> None:
    model = _model("llama")
    request = _request(asked)
    output: list[int] = []
    while len(output) < _MAX_TOKENS and _EOS not in output:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*_PROMPT, *output]])).logits[0, -1].tolist()
        values = processed_logits(logits, request.sampling, prompt=_PROMPT, output=output)
        output.append(max(range(VOCAB_SIZE), key=values.__getitem__))
    runner = LocalRunner(_model("llama"), model_id="llama", num_slots=_NUM_SLOTS)
    for policy in _POLICIES:
        assert _replies(runner, policy, [request])[asked][1] == output
