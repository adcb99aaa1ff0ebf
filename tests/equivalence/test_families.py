"""Every family through the real engine: trees, chunked prompts, shared beginnings and preemption change no token."""

import numpy as np
import pytest
import torch
from engine_helpers import run
from fakes import FakeTokenizer
from tiny_models import FAMILIES, VOCAB_SIZE, WINDOW, tiny_model

from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.local import LocalRunner

_NUM_TOKENS = 32
# Too little for all requests at once, even with their beginnings shared.
_TIGHT = 150


def _requests() -> list[GenerationRequest]:
    """Greedy and seeded ones by turns; three begin alike; all are longer than a window."""
    draw = np.random.default_rng(11)
    common = draw.integers(0, VOCAB_SIZE, 66).tolist()
    beginnings = [[], common, common, [], common]
    return [
        GenerationRequest(
            request_id=str(number),
            prompt_token_ids=(*beginning, *draw.integers(0, VOCAB_SIZE, 2 * WINDOW + number).tolist()),
            sampling=SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.8 * (number % 2), top_p=0.9, seed=number),
        )
        for number, beginning in enumerate(beginnings)
    ]


def _replies(family: str, policy: str, num_slots: int) -> tuple[list[list[int]], Engine]:
    runner = LocalRunner(tiny_model(family), model_id=family, num_slots=num_slots)
    budget = 1 if policy == "autoregressive" else 12
    config = EngineConfig(policy=policy, budget=budget, max_batch_rows=32, prefix_cache=policy != "autoregressive")
    engine = Engine(runner, Speculator(policy=policy, budget=budget, harvest_k=4), FakeTokenizer(), config)
    return [reply.token_ids for reply in run(engine, *_requests()).values()], engine


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_those_of_generate_and_of_plain_decoding(family: str) -> None:
    plain, _ = _replies(family, "autoregressive", 1000)
    model = tiny_model(family)
    for request, reply in zip(_requests(), plain, strict=True):
        prompt = torch.tensor([request.prompt_token_ids])
        if request.sampling.greedy:
            output = model.generate(prompt, do_sample=False, max_new_tokens=_NUM_TOKENS)
            assert reply == output[0, prompt.shape[1] :].tolist()
    drafted, engine = _replies(family, "goose", _TIGHT)
    assert drafted == plain
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert stats.num_accepted_tokens > 0
    assert stats.num_draft_errors == 0
