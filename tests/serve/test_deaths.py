"""Parts that die under their requests: an engine in a living process, and the HTTP side.

Nobody believes a replica whose engine is dead, it is replaced, and answers go on; a replica whose ingress is dead does
not go on for nobody, and a new ingress takes over.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import ray

from serve.helpers import MODEL, Server, continued_story, eventually

APPLICATION = {
    "import_path": "faulty_app:build_app",
    "runtime_env": {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
}
# as in faulty_app, which is not imported: it takes Ray Serve and torch with it
POISON = 13_579
ENGINE = {"budget": 60}
SERVER = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1, "target_ongoing_requests": 8}}


def replicas(server: Server) -> list[Any]:
    found: list[Any] = server.get("/v1/goose/acceptance")["replicas"]
    return found


def test_a_replica_with_a_dead_engine_is_replaced(server: Server) -> None:
    counted = server.chat("Count from one to ten.", max_tokens=12, return_goose_stats=True)["goose"]["sources"]
    (before,) = replicas(server)
    response = server.http.post("/v1/completions", json={"model": MODEL, "prompt": [POISON]})
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert response.json()["error"]["code"] == "unavailable"

    def is_replaced() -> bool:
        return any(r["healthy"] and r["incarnation"] != before["incarnation"] for r in replicas(server))

    eventually(is_replaced, within_s=60, what="a new replica")
    assert server.chat("Hi", max_tokens=1)["choices"]
    # its last report came through
    (dead,) = [r for r in replicas(server) if r["incarnation"] == before["incarnation"]]
    assert not dead["live"] or not dead["healthy"]
    assert dead["sources"]["transitions"]["attempted"] >= counted.get("transitions", {"attempted": 0})["attempted"]


def test_an_answer_goes_on_with_the_replacement(server: Server) -> None:
    """The only replica's engine dies: the call waits for the next one, and is not spent on the one that is leaving."""

    async def kill_the_engine(client: openai.AsyncOpenAI) -> None:
        poisoning = asyncio.create_task(client.completions.create(model=MODEL, prompt=[POISON]))
        # hung up before it is tried again: it would kill the replacement as well
        await asyncio.to_thread(eventually, lambda: not server.is_healthy(), within_s=60, what="the end of the engine")
        poisoning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await poisoning

    undisturbed, text = continued_story(server, kill_the_engine, max_tokens=24)
    assert text == undisturbed


def ingress_pid() -> int:
    (name,) = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "#OpenAIIngress#" in a["name"]]
    pid: int = ray.get(ray.get_actor(name, namespace="serve").__ray_call__.remote(lambda _: os.getpid()))
    return pid


def test_requests_of_a_dead_ingress_are_cancelled(server: Server) -> None:
    def both_run() -> bool:
        return server.metric("vllm:num_requests_running") == 2

    async def scenario() -> None:
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as http:
            sending = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(2)]
            await asyncio.to_thread(eventually, both_run, within_s=60, what="both requests to run")
            os.kill(ingress_pid(), signal.SIGKILL)
            for task in sending:
                # the proxy says what it likes
                with contextlib.suppress(httpx.HTTPError):
                    assert (await task).status_code >= 500

    asyncio.run(scenario())
    eventually(server.is_healthy, within_s=120, what="a new ingress")
    # Both would take minutes to end by themselves.
    eventually(server.is_idle, within_s=15, what="the end of requests that nobody reads")
    assert server.chat("Hi", max_tokens=1)["choices"]
