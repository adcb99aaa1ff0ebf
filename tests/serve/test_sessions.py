"""Recorded conversations over HTTP, under our router and under Ray Serve's: the one that returns them to the replica
that knows them finds far more of their prompts in its cache.

The model is a small random one: a machine without GPUs then has the time to pause between turns that one with GPUs has,
and a prompt takes as long to compute, beside what a request costs otherwise, as a large model's on GPUs. The routers
take turns, so that both meet what else the machine does.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import numpy as np
import pytest
from tiny_models import save_with_embedded_tokenizer

from goose_ray.bench.prompts import Conversation, Dialogue, read_prompt_files
from serve.application import serving
from serve.collector import Collector
from serve.helpers import eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not os.environ.get("GOOSE_SESSIONS"), reason="GOOSE_SESSIONS is not set: `make sessions` sets it"
    ),
]

POST = "POST /v1/chat/completions"
REPLICAS, CONTEXT, REPLY_TOKENS = 2, 8192, 16
# mean seconds between a reply and the next turn; all conversations are held at once
PAUSE_S = 8.0
ROUNDS = ("power_of_two", "prefix", "prefix", "power_of_two")
# About 0.1 ms for a row of a prompt on one core
MODEL = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4}
SERVER = {"autoscaling_config": {"min_replicas": REPLICAS, "max_replicas": REPLICAS, "target_ongoing_requests": 8}}
ENGINE = {"policy": "autoregressive", "budget": 1, "calibration": "none", "kv_cache_tokens": 32768}


@dataclass(frozen=True, slots=True)
class Outcome:
    # prompt tokens
    num_found: float
    num_asked: float
    # seconds from a request's arrival at the ingress to its place in a batch
    waits: tuple[float, ...]

    @property
    def hit_rate(self) -> float:
        return self.num_found / self.num_asked

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(self.num_found + other.num_found, self.num_asked + other.num_asked, (*self.waits, *other.waits))

    def __str__(self) -> str:
        p50, p95 = np.percentile(self.waits, (50, 95))
        return f"{self.hit_rate:.1%} of the prompt tokens found, waits p50 {p50:.3f} s, p95 {p95:.3f} s"


async def hold_all(url: str, model: str, dialogues: Sequence[Dialogue]) -> int:
    """How many requests that came to."""

    async def hold(http: httpx.AsyncClient, dialogue: Dialogue, pauses: Random) -> int:
        turns = 0
        while (request := dialogue.request_after([""] * turns, chat=True)) is not None:
            assert isinstance(request, Conversation)
            await asyncio.sleep(pauses.expovariate(1 / PAUSE_S))
            body = {"model": model, "messages": request.messages, "max_tokens": REPLY_TOKENS, "ignore_eos": True}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            turns += 1
        return turns

    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits()) as http:
        return sum(await asyncio.gather(*(hold(http, one, Random(number)) for number, one in enumerate(dialogues))))


def outcome_of(ray_address: str, folder: Path, model: Path, router: str, dialogues: Sequence[Dialogue]) -> Outcome:
    collector = Collector()
    args = {"model": str(model), "router": router, "max_body_bytes": 2_000_000, "tracing_endpoint": collector.url}
    with collector.collecting(), serving(ray_address, folder, args=args, engine=ENGINE, server=SERVER) as server:

        def both_get_requests() -> bool:
            return len(server.get("/v1/goose/steps?last=1")["replicas"]) == REPLICAS

        eventually(both_get_requests, within_s=120, what="two replicas to send to")
        before = [server.metric(f"vllm:prefix_cache_{what}_total") for what in ("hits", "queries")]
        requests = asyncio.run(hold_all(server.url, str(model), dialogues))
        after = [server.metric(f"vllm:prefix_cache_{what}_total") for what in ("hits", "queries")]

        def all_told() -> bool:
            return all(sum(span.name == name for span in collector.spans) >= requests for name in ("queue", POST))

        eventually(all_told, within_s=60, what="the traces of all requests")
        arrived = {span.trace_id: span.start_ns for span in collector.spans if span.name == POST}
        waits = tuple(1e-9 * (span.end_ns - arrived[span.trace_id]) for span in collector.spans if span.name == "queue")
        return Outcome(after[0] - before[0], after[1] - before[1], waits)


def test_conversations_find_half_as_much_again_as_under_serve_s_router(
    ray_address: str, shared_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    save_with_embedded_tokenizer(tmp_path / "model", max_position_embeddings=CONTEXT, **MODEL)
    (file,) = read_prompt_files([shared_dir / "data" / "prompts" / "support_sessions.jsonl"])
    outcomes: dict[str, Outcome] = {}
    for number, router in enumerate(ROUNDS):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        outcome = outcome_of(ray_address, folder, tmp_path / "model", router, file.dialogues)
        sys.stdout.write(f"\n{router}: {outcome}\n")
        outcomes[router] = outcomes[router] + outcome if router in outcomes else outcome
    for router, outcome in outcomes.items():
        sys.stdout.write(f"{router}, all its rounds: {outcome}\n")
    assert outcomes["prefix"].hit_rate >= 1.5 * outcomes["power_of_two"].hit_rate
