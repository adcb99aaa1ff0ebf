"""The embedded model with penalties, limits and log-probabilities: the same under every policy, alone and together."""

from typing import Any

import pytest
import torch
from engine_helpers import run

from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.engine.references import TransformersReference
from goose_ray.config import EngineConfig
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams

_MAX_TOKENS = 12
_PROMPTS = (
    "import numpy as np\n\nfor row in range(10):\n    for column in range(10):\n        print(row, column)\n\nfor row",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Once upon a time, in a small village by the sea, there lived",
)
_ASKED: dict[str, dict[str, Any]] = {
    "greedy-logprobs": {"temperature": 0.0, "logprobs": 5},
    "sampled": {"temperature": 0.7, "top_p": 0.9, "seed": 11, "logprobs": 0},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "all": {
        "temperature": 0.8,
        "min_p": 0.05,
        "top_k": 50,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "logit_bias": ((198, -5.0), (216, 2.0)),
        "min_tokens": 6,
        "seed": 5,
        "logprobs": 3,
    },
}
_Found = dict[str, tuple[list[int], list[TokenLogprobs] | None]]


def _answers(parts: ReplicaParts, policy: str, requests: list[GenerationRequest], concurrency: int) -> _Found:
    engine = new_engine(parts, EngineConfig(policy=policy, budget=60, max_running_requests=concurrency))
    return {name: (reply.token_ids, reply.logprobs) for name, reply in run(engine, *requests).items()}


def _requests(parts: ReplicaParts) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=f"{name}-{place}",
            prompt_token_ids=tuple(parts.tokenizer.encode(prompt)),
            sampling=SamplingParams(max_tokens=_MAX_TOKENS, **asked),
        )
        for name, asked in _ASKED.items()
        for place, prompt in enumerate(_PROMPTS)
    ]


@pytest.fixture(scope="module")
def plain(parts: ReplicaParts) -> _Found:
    return _answers(parts, "autoregressive", _requests(parts), 1)


@pytest.mark.parametrize(
    ("policy", "concurrency"), [("autoregressive", 12), ("goose", 12), ("anisotropic", 12), ("goose", 2)]
)
def test_features_change_nothing_about_exactness(
    parts: ReplicaParts, plain: _Found, policy: str, concurrency: int
) -> None:
    found = _answers(parts, policy, _requests(parts), concurrency)
    assert {name: ids for name, (ids, _) in found.items()} == {name: ids for name, (ids, _) in plain.items()}
    for name, (_, logprobs) in found.items():
        expected = plain[name][1]
        assert (logprobs is None) == (expected is None)
        for one, other in zip(logprobs or (), expected or (), strict=True):
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [lp for _, lp in one.top] == pytest.approx([lp for _, lp in other.top], abs=1e-3)


def test_greedy_log_probabilities_belong_to_the_greedy_reply(parts: ReplicaParts, plain: _Found) -> None:
    replies: dict[int, tuple[int, ...]] = {}
    reference = TransformersReference(parts.path, dtype=torch.float32, device=torch.device("cpu"))
    reference.generate([tuple(parts.tokenizer.encode(prompt)) for prompt in _PROMPTS], _MAX_TOKENS, replies.__setitem__)
    for place in range(len(_PROMPTS)):
        ids, logprobs = plain[f"greedy-logprobs-{place}"]
        assert tuple(ids) == replies[place]
        assert logprobs is not None
        assert [one.top[0][0] for one in logprobs] == ids
        assert ids != plain[f"penalties-{place}"][0]
