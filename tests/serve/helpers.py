"""What tests of a running application share: its address, polling, and clients."""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import ray

__all__ = ["MODEL", "Server", "async_client", "continued_story", "eventually", "is_ours", "replica_names"]

MODEL = "smollm2-135m-instruct"


def eventually(holds: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Polls until `holds`; fails the test naming `what` never did."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s} s: {what}")
        time.sleep(0.05)


def replica_names(deployment: str) -> set[str]:
    """Of the actors that live, by a deployment's name; empty: of all deployments of the application."""
    prefix = f"SERVE_REPLICA::goose#{deployment}{'#' if deployment else ''}"
    return {name for name in named_actors() if name.startswith(prefix)}


def named_actors() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


class Server:
    """A running application, as a client on this machine sees it."""

    def __init__(self, port: int, log: Path, config: Path, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.config = config
        self.log = log
        self.http = httpx.Client(base_url=self.url, timeout=120)

    def get(self, path: str) -> Any:
        response = self.http.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def metric(self, name: str) -> float:
        """The value of a metric that is summed over the replicas: `vllm:...`, or of all series of a `goose_...` one."""
        lines = self.http.get("/metrics").text.splitlines()
        values = [float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        assert values, f"no metric {name}"
        return sum(values)

    def is_idle(self) -> bool:
        return not any(
            self.metric(name)
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "goose_kv_slots_used")
        )

    def is_healthy(self) -> bool:
        try:
            return self.http.get("/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def chat(self, text: str, **options: Any) -> Any:
        """One whole answer; greedy unless told otherwise."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **options}
        response = self.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()


def async_client(server: Server, **options: Any) -> openai.AsyncOpenAI:
    defaults: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 120}
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", **{**defaults, **options})


def continued_story(
    server: Server, disturb: Callable[[openai.AsyncOpenAI], Awaitable[None]], *, max_tokens: int
) -> tuple[str, str]:
    """A seeded answer, and what came of the same one as a stream that `disturb` ran behind the first piece of."""
    request: dict[str, Any] = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": max_tokens,
        "temperature": 0.9,
        "seed": 7,
    }

    async def scenario() -> tuple[str, str]:
        async with async_client(server, timeout=600) as client:
            undisturbed = (await client.completions.create(**request, extra_body={"ignore_eos": True})).choices[0].text
            stream = await client.completions.create(
                **request, extra_body={"ignore_eos": True, "goose": {"policy": "autoregressive"}}, stream=True
            )
            text = (await anext(stream)).choices[0].text
            await disturb(client)
            async for chunk in stream:
                text += chunk.choices[0].text
        return undisturbed, text

    return asyncio.run(scenario())


def is_ours(pid: int) -> bool:
    """Whether this process started it, or what started it, and so on."""
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == os.getpid()
