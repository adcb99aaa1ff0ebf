"""The embedded model under a schema: JSON that is valid, and the same under every policy, alone and together."""

import json
from collections.abc import Sequence

from engine_helpers import Reply, run
from pydantic import BaseModel, ConfigDict, Field

from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.config import EngineConfig
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.structured import StructuredOutput

_MAX_TOKENS = 64


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    first_name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)
    likes_music: bool


_SCHEMA = StructuredOutput(
    "json_schema", json.dumps({**Person.model_json_schema(), "x-guidance": {"whitespace_pattern": " "}})
)


def _requests(parts: ReplicaParts) -> list[GenerationRequest]:
    messages = [{"role": "user", "content": "Invent a person. Answer in JSON."}]
    prompt = tuple(parts.tokenizer.apply_chat_template(messages))
    asked = {
        "greedy": SamplingParams(max_tokens=_MAX_TOKENS, temperature=0.0, structured=_SCHEMA),
        "sampled": SamplingParams(max_tokens=_MAX_TOKENS, temperature=0.7, top_p=0.9, seed=2, structured=_SCHEMA),
        "free": SamplingParams(max_tokens=12, temperature=0.0),
    }
    return [GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling=one) for name, one in asked.items()]


def _replies(parts: ReplicaParts, policy: str, requests: Sequence[GenerationRequest]) -> dict[str, Reply]:
    return run(new_engine(parts, EngineConfig(policy=policy, budget=24)), *requests)


def test_json_by_schema(parts: ReplicaParts) -> None:
    requests = _requests(parts)
    plain: dict[str, Reply] = {}
    for request in requests:
        plain |= _replies(parts, "autoregressive", [request])
    for name in ("greedy", "sampled"):
        Person.model_validate_json(plain[name].text, strict=True)
        assert plain[name].finish_reason == "stop"
    for policy in ("goose", "anisotropic"):
        together = _replies(parts, policy, requests)
        assert {name: reply.visible for name, reply in together.items()} == {
            name: reply.visible for name, reply in plain.items()
        }
        for name in ("greedy", "sampled"):
            last = together[name].last
            assert last is not None
            forced = last.stats.by_source["grammar"]
            assert forced.accepted == forced.attempted > 0
            assert last.stats.tau > 1.2
