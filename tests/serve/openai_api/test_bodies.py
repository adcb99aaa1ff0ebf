"""Bodies that are too large, full of faults or never end: refused, or dropped, and nothing else suffers."""

import socket
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest

from serve.helpers import MODEL, Server, eventually

JSON = {"content-type": "application/json"}


def chunks(num_bytes: int) -> Iterator[bytes]:
    for _ in range(0, num_bytes, 50_000):
        yield b" " * 50_000


@pytest.mark.parametrize("content", [b" " * 2_000_001, chunks(2_500_000)], ids=["with a length", "in chunks"])
def test_a_body_above_the_limit(server: Server, content: bytes | Iterator[bytes]) -> None:
    with httpx.Client(base_url=server.url, timeout=120) as http:
        response = http.post("/v1/chat/completions", content=content, headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert server.chat("Hi", max_tokens=1)["choices"]


def test_a_body_full_of_faults(server: Server) -> None:
    body = b'{"model": "' + MODEL.encode() + b'", "messages": [' + b"1," * 900_000 + b"1]}"
    response = server.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0]")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_text_that_cannot_fit(server: Server, path: str) -> None:
    text = "x" * 1_000_000
    fields = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    response = server.http.post(path, json={"model": MODEL, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == next(iter(fields))
    assert "bytes of text cannot be" in error["message"]


def test_an_unknown_policy_is_named_as_the_client_did(server: Server) -> None:
    body = {"model": MODEL, "prompt": "a", "goose": {"policy": "swan"}}
    error = server.http.post("/v1/completions", json=body).json()["error"]
    assert error["param"] == "goose.policy"
    assert error["message"].startswith("goose.policy must be one of ")


def test_a_client_that_leaves_in_mid_body_leaves_no_traceback(server: Server) -> None:
    start = len(server.log.read_text())

    def logged() -> str:
        return server.log.read_text()[start:]

    def departures() -> int:
        return logged().count("disconnected, cancelling request")

    def one_more_than(before: int) -> bool:
        return departures() > before

    address = urlsplit(server.url)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    # Whether the app is told by ASGI or by a cancelled task is a race, so several times.
    for _ in range(8):
        before = departures()
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(head.encode())
            # requests that came after it have been answered: the ingress is reading
            assert server.is_healthy()
            assert server.is_healthy()
        eventually(partial(one_more_than, before), within_s=30, what="the end of the request")
    assert server.is_healthy()
    for trace in ("ClientDisconnect", "never retrieved", "Traceback"):
        assert trace not in logged()


def test_more_prompts_than_an_idle_replica_takes_at_once(server: Server) -> None:
    body = {"model": MODEL, "prompt": ["Hi"] * 120, "max_tokens": 1, "temperature": 1.5}
    response = server.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    texts = [choice["text"] for choice in response.json()["choices"]]
    assert len(texts) == 120
    assert len(set(texts)) > 1, "equal prompts without a seed were drawn alike"
