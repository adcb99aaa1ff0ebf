"""Structured output under every policy is that of plain decoding: alone, among free requests, and preempted.

Plain decoding is a loop over the model's own logits, of which the tokens that a fresh matcher forbids are left out.
"""

from collections.abc import Sequence
from dataclasses import replace
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
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.structured import Preface, StructuredOutput
from goose_ray.runner.local import LocalRunner

_POLICIES = ("autoregressive", *(policy for policy in POLICIES if policy != "autoregressive"))
_EOS = 5
_MAX_TOKENS = 48
_NUM_SLOTS = 1024
_PROMPT = (17, 40, 8, 90, 17, 40, 8, 90, 17, 40, 8)

_SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}, '
    '"ok": {"type": "boolean"}}, "required": ["name", "age", "ok"], "additionalProperties": false}'
)
_GRAMMAR = 'start: "<" word ("," word)* ">"\nword: /[a-f]{1,3}/'
_SHAPES = {
    "schema": StructuredOutput("json_schema", _SCHEMA),
    "object": StructuredOutput("json_object"),
    "regex": StructuredOutput("regex", "(ab|cd)+[0-9]{2,}; total: [0-9]{3}"),
    "grammar": StructuredOutput("grammar", _GRAMMAR),
    "choice": StructuredOutput("choice", '["yes, of course", "yes, perhaps", "never"]'),
}
_ASKED: dict[str, dict[str, Any]] = {
    **{f"{shape}-greedy": {"temperature": 0.0, "structured": asked} for shape, asked in _SHAPES.items()},
    **{f"{shape}-sampled": {"temperature": 0.7, "top_p": 0.9, "structured": asked} for shape, asked in _SHAPES.items()},
    "penalties": {
        "temperature": 0.0,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "structured": _SHAPES["schema"],
    },
    "min_tokens": {"temperature": 0.9, "top_k": 3, "min_tokens": 12, "structured": StructuredOutput("regex", "a*b*")},
    "logit_bias": {"temperature": 0.9, "logit_bias": ((ord("d"), 9.0),), "structured": _SHAPES["grammar"]},
    "logprobs": {"temperature": 0.0, "logprobs": 5, "structured": _SHAPES["schema"]},
    "thought": {"temperature": 0.9, "structured": replace(_SHAPES["schema"], preface=Preface("", "f"))},
    "free": {"temperature": 0.8, "top_p": 0.9},
    "free-greedy": {"temperature": 0.0},
}


def _model() -> Any:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = _EOS
    return model


@cache
def _runner(num_slots: int = _NUM_SLOTS) -> LocalRunner:
    return LocalRunner(_model(), model_id="llama", num_slots=num_slots)


def _request(asked: str, **changes: Any) -> GenerationRequest:
    sampling = SamplingParams(**{"seed": 3, "max_tokens": _MAX_TOKENS, **_ASKED[asked], **changes})
    return GenerationRequest(request_id=asked, prompt_token_ids=_PROMPT, sampling=sampling)


def _engine(policy: str, *, num_slots: int = _NUM_SLOTS, **config: int) -> Engine:
    return Engine(
        _runner(num_slots),
        Speculator(policy=policy, budget=24, harvest_k=8),
        FakeTokenizer(specials=(_EOS,)),
        EngineConfig.model_validate({"policy": policy, "budget": 24, **config}),
    )


def _replies(policy: str, requests: Sequence[GenerationRequest], **config: int) -> dict[str, Reply]:
    engine = _engine(policy, **config)
    replies: dict[str, Reply] = run(engine, *requests)
    assert engine.stats().num_draft_errors == 0
    assert (engine.stats().num_preemptions > 0) == ("num_slots" in config)
    return replies


@cache
def _plain(asked: str) -> Reply:
    return _replies("autoregressive", [_request(asked)])[asked]


@pytest.mark.parametrize("policy", ["goose", "anisotropic"])
@pytest.mark.parametrize("asked", [name for name in _ASKED if "free" not in name])
def test_alone(asked: str, policy: str) -> None:
    assert _replies(policy, [_request(asked)])[asked].visible == _plain(asked).visible


@pytest.mark.parametrize("policy", _POLICIES)
def test_together(policy: str) -> None:
    replies = _replies(policy, [_request(asked) for asked in _ASKED])
    assert {asked: reply.visible for asked, reply in replies.items()} == {
        asked: _plain(asked).visible for asked in _ASKED
    }
    logprobs = [one.logprob for one in replies["logprobs"].logprobs or ()]
    assert logprobs == pytest.approx([one.logprob for one in _plain("logprobs").logprobs or ()], abs=1e-3)


@pytest.mark.parametrize("policy", ["autoregressive", "goose", "anisotropic"])
def test_together_short_of_room(policy: str) -> None:
    """Preempted sequences go on where they were in their grammars."""
    replies = _replies(policy, [_request(asked) for asked in _ASKED], num_slots=150, max_batch_rows=40, budget=8)
    assert {asked: reply.visible for asked, reply in replies.items()} == {
        asked: _plain(asked).visible for asked in _ASKED
    }


def test_begun_by_another_engine() -> None:
    """Each goes on in the middle of its output, and of its grammar."""
    begun = {}
    for asked in _ASKED:
        if asked != "logprobs":
            delivered = _plain(asked).ids_before_each_output
            begun[asked] = replace(_request(asked), committed_ids=delivered[len(delivered) // 2])
    replies = _replies("anisotropic", list(begun.values()))
    assert {asked: reply.visible for asked, reply in replies.items()} == {
        asked: _plain(asked).visible for asked in begun
    }


@pytest.mark.parametrize("asked", [name for name in _ASKED if name.endswith("-greedy") or name == "penalties"])
def test_greedy_equals_a_plain_loop(asked: str) -> None:
    model, request = _model(), _request(asked)
    structured = request.sampling.structured
    compiler = GrammarCompiler(FakeTokenizer(specials=(_EOS,)), vocab_size=VOCAB_SIZE, eos_token_ids=(_EOS,))
    output: list[int] = []
    while len(output) < _MAX_TOKENS and _EOS not in output:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*_PROMPT, *output]])).logits[0, -1].tolist()
        values = processed_logits(logits, request.sampling, prompt=_PROMPT, output=output)
        allowed = list(range(VOCAB_SIZE))
        if structured is not None:
            state = GrammarState(compiler.compile(structured))
            if output:
                state.advance(output)
            if state.place is not Place.OPEN:
                break
            allowed = [token for token in allowed if int(state.mask[token >> 5]) >> (token & 31) & 1]
        output.append(max(allowed, key=values.__getitem__))
    assert _plain(asked).token_ids == output


def test_forced_tokens_are_drafted_and_never_rejected() -> None:
    for policy in ("autoregressive", "chain", "anisotropic"):
        engine = _engine(policy)
        run(engine, *(_request(asked) for asked in _ASKED if "choice" in asked or "regex" in asked))
        attempted, accepted = engine.acceptance().totals()["grammar"]
        if policy == "autoregressive":
            assert (attempted, accepted, engine.stats().num_draft_tokens) == (0, 0, 0)
        else:
            assert attempted > 20
            # A draft behind which the output ended was not wrong.
            assert accepted == attempted
