"""The HTTP side dies under its requests: the replica does not go on for nobody, and a new ingress takes over."""

import asyncio
import contextlib
import os
import signal

import httpx
import ray

from serve.helpers import MODEL, Server, eventually

ENGINE = {"budget": 60}
SERVER = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1, "target_ongoing_requests": 8}}


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
