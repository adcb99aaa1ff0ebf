"""What tests of a running application share: its address, polling, and clients."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

__all__ = ["MODEL", "Server", "async_client", "eventually"]

MODEL = "smollm2-135m-instruct"


def eventually(holds: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Polls until `holds`; fails the test naming `what` never did."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s} s: {what}")
        time.sleep(0.05)


class Server:
    """A running application, as a client on this machine sees it."""

    def __init__(self, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
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
