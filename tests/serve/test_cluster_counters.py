"""Replicas whose reports get lost and come twice, under shared prompts, while three aggregators and a replica are
killed: once all is quiet the aggregator has what the living replicas counted, exactly.
"""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
import ray

from serve.helpers import MODEL, Server, async_client, eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not os.environ.get("GOOSE_COUNTERS"), reason="GOOSE_COUNTERS is not set: `make counters` sets it"
    ),
]

REPLICAS = int(os.environ.get("GOOSE_COUNTERS_REPLICAS", "4"))
APPLICATION = {
    "import_path": "lossy_app:build_app",
    "runtime_env": {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
    "args": {
        "model": MODEL,
        "report_period_s": 0.5,
        "replica_silent_after_s": 5.0,
        "engine": {"max_running_requests": 8, "budget": 16, "kv_cache_tokens": 8192},
    },
}
SERVER = {"autoscaling_config": {"min_replicas": REPLICAS, "max_replicas": REPLICAS, "target_ongoing_requests": 8}}
FILES = ("humaneval", "gsm8k", "mt_bench", "spec_bench_qa")
REQUESTS_AT_ONCE, WAVES = 12, 4


def prompts(shared_dir: Path) -> list[str]:
    found = []
    for name in FILES:
        for line in (shared_dir / "data" / "prompts" / f"{name}.jsonl").read_text().splitlines()[:12]:
            row = json.loads(line)
            found.append(row.get("prompt") or row["turns"][0])
    return found


def acceptance(server: Server) -> Any:
    return server.get("/v1/goose/acceptance")


def live_replicas(server: Server) -> dict[str, Any]:
    return {replica["incarnation"]: replica for replica in acceptance(server)["replicas"] if replica["healthy"]}


def aggregator() -> Any:
    (name,) = [
        a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "acceptance_aggregator" in a["name"]
    ]
    return ray.get_actor(name, namespace="serve")


async def send(server: Server, texts: list[str]) -> int:
    """How many were answered: who waits at a replica that dies is answered by another one, or told to come again."""

    async def one(client: openai.AsyncOpenAI, text: str) -> bool:
        try:
            answer = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": text[:2000]}], temperature=0, max_tokens=24
            )
        except openai.APIStatusError as error:
            if error.status_code not in (429, 503):
                raise
            return False
        return bool(answer.choices)

    async with async_client(server) as client:
        return sum(await asyncio.gather(*(one(client, text) for text in texts)))


def test_what_the_living_replicas_counted_is_exact(server: Server, shared_dir: Path) -> None:
    eventually(lambda: len(live_replicas(server)) == REPLICAS, within_s=240, what="all replicas")
    texts = prompts(shared_dir)
    answered = 0
    for wave in range(WAVES):
        part = texts[wave * REQUESTS_AT_ONCE : (wave + 1) * REQUESTS_AT_ONCE]

        async def scenario(part: list[str] = part, wave: int = wave) -> int:
            sending = asyncio.create_task(send(server, part))
            await asyncio.to_thread(
                eventually, lambda: server.metric("vllm:num_requests_running") > 0, within_s=60, what="requests to run"
            )
            if wave < 3:
                await asyncio.to_thread(lambda: ray.kill(aggregator()))
            else:
                victim = next(iter((await asyncio.to_thread(live_replicas, server)).values()))
                os.kill(victim["pid"], signal.SIGKILL)
            return await sending

        answered += asyncio.run(scenario())
        eventually(lambda: acceptance(server)["remembered"], within_s=60, what="an aggregator")
    assert answered > REQUESTS_AT_ONCE * WAVES // 2
    eventually(lambda: len(live_replicas(server)) == REPLICAS, within_s=240, what="a new one in its place")
    eventually(server.is_idle, within_s=60, what="all requests to end")
    # Until here views were made of fresh reports too. What the actor knows now it has from the reporters alone.
    ray.kill(aggregator())

    def known() -> dict[str, Any]:
        try:
            view = ray.get(aggregator().exchange.remote([]), timeout=10)
        except (ray.exceptions.RayError, ValueError):
            return {}
        return {one.report.incarnation.id: one.report for one in view.live}

    reports: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    own: dict[str, Any] = {}

    def all_are_heard_of() -> bool:
        # a replica whose reports are lost one after another counts as gone for a while
        nonlocal reports, shown, own
        reports, shown = known(), acceptance(server)
        own = {replica["incarnation"]: replica["sources"] for replica in shown["replicas"] if replica["healthy"]}
        return len(reports) == REPLICAS and reports.keys() == own.keys()

    eventually(all_are_heard_of, within_s=120, what="reports of all to come through")
    metrics = server.http.get("/metrics").text.splitlines()
    for name, report in reports.items():
        counted = {
            source: (counts["attempted"], counts["accepted"])
            for source, counts in own[name].items()
            if counts["attempted"]
        }
        assert {source: pair for source, pair in report.acceptance.totals().items() if pair[0]} == counted
        of_replica = f'replica="{report.incarnation.replica_id}"'
        for metric, number in (("steps", "num_steps"), ("generation_tokens", "generation_tokens")):
            (line,) = [line for line in metrics if line.startswith(f"goose_{metric}_total{{") and of_replica in line]
            assert float(line.split()[-1]) == getattr(report.stats, number)
    for key in ("attempted", "accepted"):
        parts = [*(replica["sources"] for replica in shown["replicas"]), shown["retired"]["sources"]]
        assert sum(source[key] for source in shown["sources"].values()) == sum(
            source[key] for part in parts for source in part.values()
        )
    assert sum(pair[0] for report in reports.values() for pair in report.acceptance.totals().values()) > 1000
