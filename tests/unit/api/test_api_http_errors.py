"""The HTTP surface over a scripted backend: error bodies, what a body may be, and what a hang-up does."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from scripted_backend import (
    CHAT,
    JSON,
    LIMITS,
    MAX_BODY_BYTES,
    MODEL,
    SCRIPT,
    ScriptedBackend,
    client_of,
    events_of,
    post,
    request,
)
from starlette.types import ASGIApp

from goose_ray.api.disconnects import Disconnects
from goose_ray.api.http_app import build_http_app
from goose_ray.errors import EngineDeadError, InvalidRequestError, OverloadedError

TOOL = {"type": "function", "function": {"name": "f"}}


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "path"), [("POST", "/v1/chat/completions/"), ("GET", "/v1/models/"), ("GET", "/health/")]
    )
    def test_a_path_with_a_slash_at_its_end_is_unknown(self, method: str, path: str) -> None:
        response = request(ScriptedBackend(), method, path)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize(
        ("error", "status", "kind", "headers"),
        [
            (InvalidRequestError("no", "prompt", "c"), 400, "invalid_request_error", {}),
            (OverloadedError("full", 1.2), 429, "rate_limit_error", {"retry-after": "2"}),
            (EngineDeadError("dead"), 503, "server_error", {"retry-after": "1"}),
            (ZeroDivisionError("secret"), 500, "server_error", {}),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_first_token(
        self, error: Exception, status: int, kind: str, headers: dict[str, str], stream: bool
    ) -> None:
        backend = ScriptedBackend([error])
        response = post(backend, "/v1/chat/completions", {**CHAT, "stream": stream})
        assert response.status_code == status
        assert response.json()["error"]["type"] == kind
        assert headers.items() <= dict(response.headers).items()
        assert "secret" not in response.text
        assert len(backend.closed) == 1

    def test_in_mid_stream_it_becomes_an_event(self) -> None:
        script = [SCRIPT[0], EngineDeadError("the engine died")]
        events = events_of(post(ScriptedBackend(script), "/v1/chat/completions", {**CHAT, "stream": True}))
        assert events[-1]["error"]["message"] == "the engine died"
        assert events[-2]["choices"][0]["delta"]["content"] == "Hé"

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    def test_an_unknown_model_is_not_found(self, path: str) -> None:
        body = {**CHAT, "model": "gpt-9"} if "chat" in path else {"model": "gpt-9", "prompt": "x"}
        response = post(ScriptedBackend(), path, body)
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert MODEL in error["message"]

    def test_a_wrong_field_is_named_in_the_body(self) -> None:
        response = post(ScriptedBackend(), "/v1/chat/completions", {**CHAT, "temperature": -1})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "temperature"

    def test_a_wrong_query_parameter_is_named(self) -> None:
        response = request(ScriptedBackend(), "GET", "/v1/goose/steps?last=0")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "last")

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)]
    )
    def test_unknown_paths_and_methods_have_the_same_body(self, method: str, path: str, status: int) -> None:
        response = request(ScriptedBackend(), method, path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


class TestBody:
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    def test_a_larger_one_than_the_limit_is_refused(self, path: str) -> None:
        backend = ScriptedBackend()
        response = request(backend, "POST", path, content=b"[" * (MAX_BODY_BYTES + 1), headers=JSON)
        assert response.status_code == 413
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
        assert str(MAX_BODY_BYTES) in error["message"]

    def test_one_without_a_length_is_refused_while_it_is_read(self) -> None:
        """The client would send for ever: it is asked for no more than the limit, and a chunk."""
        num_chunks = 0

        async def endless() -> AsyncGenerator[bytes]:
            nonlocal num_chunks
            while True:
                num_chunks += 1
                yield b" " * 10_000

        response = request(ScriptedBackend(), "POST", "/v1/completions", content=endless(), headers=JSON)
        assert response.status_code == 413
        assert num_chunks == MAX_BODY_BYTES // 10_000 + 1

    def test_one_that_does_not_come_is_given_up(self) -> None:
        async def stalled() -> AsyncGenerator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        async def scenario() -> httpx.Response:
            app = build_http_app(ScriptedBackend(), MODEL, limits=replace(LIMITS, body_timeout_s=0.01))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://goose") as client:
                return await client.post("/v1/completions", content=stalled(), headers=JSON)

        response = asyncio.run(scenario())
        assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")

    def test_a_compressed_one_is_refused_by_name(self) -> None:
        headers = {**JSON, "content-encoding": "gzip"}
        response = request(ScriptedBackend(), "POST", "/v1/completions", content=b"\x1f\x8b", headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (415, "content-encoding")

    def test_one_of_the_limit_is_read(self) -> None:
        body = json.dumps(CHAT).encode().ljust(MAX_BODY_BYTES)
        assert request(ScriptedBackend(), "POST", "/v1/chat/completions", content=body, headers=JSON).is_success

    @pytest.mark.parametrize("told", ["by a message", "by an exception"])
    def test_a_client_that_leaves_before_its_end_is_no_fault(self, told: str) -> None:
        async def scenario() -> int:
            app = Disconnects(build_http_app(ScriptedBackend(), MODEL, limits=LIMITS), _Ended)
            messages = iter([{"type": "http.request", "body": b"{", "more_body": True}])
            sent: list[Any] = []

            async def receive() -> Any:
                return next(messages, None) or _client_left(told)

            async def send(message: Any) -> None:
                sent.append(message)

            await app(_post_scope("/v1/chat/completions"), receive, send)
            return int(sent[0]["status"])

        assert asyncio.run(scenario()) == 499


class _Ended(Exception):
    """As a server raises it for a request that it has ended."""


def _client_left(told: str) -> dict[str, Any]:
    if told == "by an exception":
        raise _Ended
    return {"type": "http.disconnect"}


async def _hang_up(app: ASGIApp, path: str, body: dict[str, Any], told: str) -> None:
    """One POST whose client disconnects at the first text."""
    sent, hang_up = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await hang_up.wait()
        return _client_left(told)

    async def send(message: Any) -> None:
        if "Hé".encode() in message.get("body", b""):
            hang_up.set()

    await app(_post_scope(path), receive, send)


def _post_scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("goose", 80),
        "client": ("client", 1),
        "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "n": 2, "tools": [TOOL], "tool_choice": "required"}),
        ("/v1/completions", {"model": MODEL, "prompt": ["a", "b"]}),
    ],
)
@pytest.mark.parametrize("told", ["by a message", "by an exception"])
def test_a_client_that_hangs_up_in_mid_stream_ends_its_calls(path: str, body: dict[str, Any], told: str) -> None:
    async def scenario() -> None:
        backend = ScriptedBackend()
        backend.gate = asyncio.Event()  # never set: without the hang-up the stream would not end
        hanging_up = _hang_up(
            Disconnects(build_http_app(backend, MODEL, limits=LIMITS), _Ended),
            path,
            {**body, "stream": True},
            told,
        )
        await asyncio.wait_for(hanging_up, timeout=10)
        assert len(backend.closed) == len(backend.calls)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_request_ends_its_call(stream: bool) -> None:
    async def scenario() -> None:
        backend = ScriptedBackend(SCRIPT[1:])
        backend.gate = asyncio.Event()
        async with client_of(backend) as client:
            sending = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "stream": stream}))
            while not backend.calls:
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])
        assert len(backend.closed) == 1

    asyncio.run(scenario())
