"""Autoscaling by `CapacityPolicy`, with short delays: a burst gets a second replica, which goes when the burst is over;
a deployment that may have no replica loses its last one, and gets it back with the next request.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from serve.application import serving
from serve.helpers import MODEL, Server, eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("GOOSE_BURST"), reason="GOOSE_BURST is not set: `make burst` sets it"),
]

UPSCALE_S, DOWNSCALE_S = 3.0, 15.0
# Serve's queue is the mean of so long: after a burst it takes that long to be empty.
LOOK_BACK_S = 10.0
# Replicas tell their load, and ingresses their queues, every ten seconds; Serve decides several times a second.
PUSH_S, SLACK_S = 10.0, 5.0
MAX_ONGOING, MAX_QUEUED = 8, 16
LIMITS = {
    "max_ongoing_requests": MAX_ONGOING,
    "max_queued_requests": MAX_QUEUED,
    "backpressure_config": {"status_code": 429, "retry_after_s": 2},
}
ENGINE = {"max_running_requests": MAX_ONGOING, "kv_cache_tokens": 8192}
BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count from one to one hundred."}],
    "temperature": 0,
    "max_tokens": 48,
    "ignore_eos": True,
}


def autoscaling(**options: Any) -> dict[str, Any]:
    policy = {"policy_function": "goose_ray.scaling.policy:CapacityPolicy"}
    return {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 8,
        "look_back_period_s": LOOK_BACK_S,
        "policy": policy,
        **options,
    }


def num_replicas() -> int:
    """Those that start count too. Not by `serve.status`, which asks the first application's controller for ever."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return sum(name.startswith("SERVE_REPLICA::goose#GooseServer#") for name in names)


async def ask(http: httpx.AsyncClient) -> httpx.Response:
    return await http.post("/v1/chat/completions", json=BODY)


async def keep_asking(server: Server, clients: int, until: Any, *, pause_s: float = 0.0) -> list[int]:
    """Statuses of all answers: `clients` ask one thing after the other, `pause_s` apart, until `until()`, in a thread,
    has returned.
    """
    statuses: list[int] = []

    async def one(http: httpx.AsyncClient, done: asyncio.Event) -> None:
        while not done.is_set():
            statuses.append((await ask(http)).status_code)
            await asyncio.sleep(pause_s)

    async with httpx.AsyncClient(base_url=server.url, timeout=180, limits=httpx.Limits(max_connections=99)) as http:
        done = asyncio.Event()
        asking = [asyncio.create_task(one(http, done)) for _ in range(clients)]
        try:
            await asyncio.to_thread(until)
        finally:
            done.set()
            await asyncio.gather(*asking)
    return statuses


def test_a_burst_gets_a_second_replica_and_nobody_fails(ray_address: str, tmp_path: Path) -> None:
    config = autoscaling(upscale_delay_s=UPSCALE_S, downscale_delay_s=DOWNSCALE_S)
    with serving(ray_address, tmp_path, server={"autoscaling_config": config, **LIMITS}, engine=ENGINE) as server:

        def until_two_serve() -> None:
            within_s = UPSCALE_S + 2 * PUSH_S + SLACK_S
            eventually(lambda: num_replicas() == 2, within_s=within_s, what="a second replica to be started")
            eventually(lambda: server.get("/health")["replicas"]["healthy"] == 2, within_s=180, what="it to serve")

        def until_one_is_left() -> None:
            within_s = LOOK_BACK_S + DOWNSCALE_S + 2 * PUSH_S + SLACK_S
            eventually(lambda: num_replicas() == 1, within_s=within_s, what="the second replica to go")

        assert num_replicas() == 1
        during = asyncio.run(keep_asking(server, 12, until_two_serve))
        # a client that never pauses can take most of what a replica on a CPU can do
        after = asyncio.run(keep_asking(server, 1, until_one_is_left, pause_s=3.0))
        assert set(during) == {200}
        assert set(after) == {200}

        async def far_too_many() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url, timeout=180, limits=httpx.Limits()) as http:
                return await asyncio.gather(*(ask(http) for _ in range(60)))

        answers = asyncio.run(far_too_many())
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert len(answers) - len(refused) >= MAX_ONGOING
        assert {answer.headers["retry-after"] for answer in refused} == {"2"}


def test_nobody_there_no_replica_and_the_next_request_gets_one(ray_address: str, tmp_path: Path) -> None:
    config = autoscaling(min_replicas=0, initial_replicas=1, max_replicas=1, downscale_delay_s=3.0)
    with serving(ray_address, tmp_path, server={"autoscaling_config": config, **LIMITS}, engine=ENGINE) as server:
        assert server.chat("Hi", max_tokens=2)["choices"]
        eventually(lambda: num_replicas() == 0, within_s=3.0 + 2 * PUSH_S + SLACK_S, what="the replica to go")
        # looking at it is no reason to start one
        for _ in range(30):
            assert server.http.get("/metrics").status_code == 200
            assert num_replicas() == 0
        assert server.chat("Hi", max_tokens=2)["choices"]
        assert num_replicas() == 1
