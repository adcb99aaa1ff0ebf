"""The engine over real forwards: a prefix from the cache, cold, warm, shared or evicted, changes no reply."""

import numpy as np
import pytest
import torch
from engine_helpers import run
from fakes import FakeTokenizer
from tiny_models import FAMILIES, VOCAB_SIZE, tiny_model

from goose.speculator import Speculator
from goose_ray.assembly import load_parts, new_engine
from goose_ray.config import EngineConfig, GooseConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.local import LocalRunner

_NUM_TOKENS = 20


def _engine(runner: LocalRunner, policy: str, *, prefix_cache: bool) -> Engine:
    budget = 1 if policy == "autoregressive" else 12
    config = EngineConfig(policy=policy, budget=budget, max_batch_rows=48, prefix_cache=prefix_cache)
    return Engine(runner, Speculator(policy=policy, budget=budget, harvest_k=4), FakeTokenizer(), config)


def _requests() -> list[GenerationRequest]:
    """A long beginning in common, and two that are alike; greedy and sampled."""
    draw = np.random.default_rng(3)
    common = draw.integers(0, VOCAB_SIZE, 60).tolist()
    endings = [draw.integers(0, VOCAB_SIZE, 3 + 5 * i).tolist() for i in range(4)]
    prompts = [(*common, *ending) for ending in (*endings, endings[1])]
    return [
        GenerationRequest(
            request_id=str(number),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.9 * (number % 2), seed=number),
        )
        for number, prompt in enumerate(prompts)
    ]


def _replies(engine: Engine, requests: list[GenerationRequest]) -> list[list[int]]:
    return [reply.token_ids for reply in run(engine, *requests).values()]


@pytest.mark.parametrize("family", FAMILIES)
def test_cold_warm_and_off_say_the_same(family: str) -> None:
    requests = _requests()
    runner = LocalRunner(tiny_model(family), model_id=family, num_slots=600)
    expected = _replies(_engine(runner, "autoregressive", prefix_cache=False), requests)
    greedy = tiny_model(family).generate(
        torch.tensor([requests[0].prompt_token_ids]), do_sample=False, max_new_tokens=_NUM_TOKENS
    )
    assert expected[0] == greedy[0, len(requests[0].prompt_token_ids) :].tolist()
    for policy in ("goose", "anisotropic"):
        engine = _engine(runner, policy, prefix_cache=True)
        assert [_replies(engine, requests[:1]), _replies(engine, requests[1:])] == [expected[:1], expected[1:]]
        assert engine.stats().prefix_cache_hits >= 4 * 60
        assert _replies(engine, requests) == expected
        assert [_replies(engine, [request])[0] for request in requests] == expected
        assert engine.stats().num_draft_errors == 0


def test_evicted_and_preempted_say_the_same() -> None:
    requests = _requests()
    roomy = LocalRunner(tiny_model("llama"), model_id="llama", num_slots=600)
    expected = _replies(_engine(roomy, "autoregressive", prefix_cache=False), requests)
    tight = LocalRunner(tiny_model("llama"), model_id="llama", num_slots=130)
    engine = _engine(tight, "goose", prefix_cache=True)
    for _ in range(3):
        assert _replies(engine, requests) == expected
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert 0 < stats.prefix_cache_hits < stats.prefix_cache_queries


def test_the_next_turn_goes_on_from_computed_replies() -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="llama", num_slots=600)
    warm = _engine(runner, "goose", prefix_cache=True)
    turns = _requests()[:2]
    for number in range(3):
        hits = warm.stats().prefix_cache_hits
        replies = _replies(warm, turns)
        if number:
            # All but the reply's last token, which is never computed, and what follows it.
            found = sum(len(turn.prompt_token_ids) - 3 for turn in turns)
            assert warm.stats().prefix_cache_hits - hits == found
        cold = _engine(LocalRunner(tiny_model("llama"), model_id="llama", num_slots=600), "goose", prefix_cache=False)
        assert replies == _replies(cold, turns)
        turns = [
            GenerationRequest(
                request_id=turn.request_id,
                prompt_token_ids=(*turn.prompt_token_ids, *reply, number, 5),
                sampling=turn.sampling,
            )
            for turn, reply in zip(turns, replies, strict=True)
        ]


def test_the_embedded_model_says_the_same_of_a_cached_prompt() -> None:
    parts = load_parts(GooseConfig())
    texts = ("What is the capital of France?", "Count from one to twenty.", "Translate to German: The lake is cold.")
    prompts = [parts.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    requests = [
        GenerationRequest(
            request_id=str(number),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=12, temperature=0.8 * (number == 1), seed=number),
        )
        for number, prompt in enumerate(prompts)
    ]
    expected = _replies(new_engine(parts, EngineConfig(policy="autoregressive", prefix_cache=False)), requests)
    engine = new_engine(parts, EngineConfig())
    assert _replies(engine, requests) == expected
    hits = engine.stats().prefix_cache_hits
    assert _replies(engine, requests) == expected
    assert engine.stats().prefix_cache_hits - hits == sum(len(prompt) - 1 for prompt in prompts)
