"""Ctrl-C at `goose serve`: answers under way are answered, nobody else gets in, and a second one ends it at once."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.application import serving
from serve.helpers import MODEL, Server, eventually

SERVER = {"autoscaling_config": None, "num_replicas": 1, "graceful_shutdown_timeout_s": 120}
BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "Once upon a time",
    "max_tokens": 300,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "goose": {"policy": "autoregressive"},
}


def test_a_stream_is_answered_to_its_end(ray_address: str, tmp_path: Path) -> None:
    with serving(ray_address, tmp_path, server=SERVER) as server:
        _until_logged(server, "is served at")
        with server.http.stream("POST", "/v1/completions", json=BODY) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGINT)
            eventually(lambda: server.http.get("/health").status_code == 404, within_s=60, what="nobody else gets in")
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2].replace(" ", "")
        assert server.process.wait(120) == 0
        with pytest.raises(httpx.HTTPError):
            server.http.get("/health", timeout=5)


def test_who_asks_twice_does_not_wait(ray_address: str, tmp_path: Path) -> None:
    with serving(ray_address, tmp_path, server=SERVER) as server:
        _until_logged(server, "is served at")
        with server.http.stream("POST", "/v1/completions", json={**BODY, "max_tokens": 1500}) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGINT)
            _until_logged(server, "being answered has 120 s")
            server.process.send_signal(signal.SIGINT)
            with pytest.raises(httpx.HTTPError):
                list(lines)
        # nor does it matter when its end is broken off
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(120) == 0
        log = server.log.read_text()
    assert "Aborted" not in log
    assert "Not all" not in log
    assert log.rstrip().endswith("Stopped.")


def _until_logged(server: Server, text: str) -> None:
    eventually(lambda: text in server.log.read_text(), within_s=60, what=text)
