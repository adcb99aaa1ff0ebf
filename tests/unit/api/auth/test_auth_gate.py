"""Who gets in to a server with keys, by which header, and to what."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from keyed_server import ALICE, BOB, ask, basic, bearer, key_file
from scripted_backend import CHAT, LIMITS, MODEL, ScriptedBackend, client_of
from starlette.routing import Route

from goose_ray.api.auth.api_key import hash_of, new_key
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.http_app import build_http_app

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "MADEUP")


def routes_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    """(method, path) of all that the app answers, by its own table. Other kinds of routes than these are an error: they
    would go untested.
    """
    for route in app.routes:
        assert isinstance(route, Route | APIRoute), f"{route}: say here how it is asked"
        for method in route.methods or ():
            yield method, route.path.replace("{name:path}", MODEL)


def open_socket(
    keys: KeyRing, path: str, headers: Mapping[str, str], *, extensions: Iterable[str] = ("websocket.http.response",)
) -> list[dict[str, Any]]:
    """What a server would be told that asks for a WebSocket."""
    app = build_http_app(ScriptedBackend(), MODEL, limits=LIMITS, keys=keys)
    scope: dict[str, Any] = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "subprotocols": [],
        "extensions": {name: {} for name in extensions},
    }
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        told.append(dict(message))

    asyncio.run(app(scope, receive, send))
    return told


def test_every_route_but_health_wants_a_key(tmp_path: Path) -> None:
    keys = KeyRing(key_file(tmp_path))
    routes = list(routes_of(build_http_app(ScriptedBackend(), MODEL, limits=LIMITS, keys=keys)))
    assert len(routes) > 25
    unknown = ["/nothing", "/health/", "//health", "/HEALTH", "/health/x", "/docs", "/redoc"]
    for path in {*(path for _, path in routes), *unknown}:
        routes += [(method, path) for method in METHODS]

    async def ask_all() -> dict[tuple[str, str], httpx.Response]:
        async with client_of(ScriptedBackend(), keys) as client:
            return {one: await client.request(*one) for one in set(routes)}

    for (method, path), response in asyncio.run(ask_all()).items():
        if path == "/health":
            assert response.status_code == (200 if method in ("GET", "HEAD") else 405)
            continue
        assert response.status_code == 401, f"{method} {path}"
        assert "Bearer" in response.headers["www-authenticate"]
        if method != "HEAD":
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")


def test_a_socket_wants_a_key(tmp_path: Path) -> None:
    """No route of ours is one: behind the gate it is one that does not exist."""
    keys = KeyRing(key_file(tmp_path))
    for path in ("/v1/chat/completions", "/health", "/dashboard", "/nothing"):
        denied = open_socket(keys, path, {})
        assert (denied[0]["type"], denied[0]["status"]) == ("websocket.http.response.start", 401)
        closed = open_socket(keys, path, {}, extensions=())
        assert [message["type"] for message in closed] == ["websocket.close"]
        assert open_socket(keys, path, basic(ALICE))[0]["status"] == 401
        assert [message["type"] for message in open_socket(keys, path, bearer(ALICE))] == ["websocket.close"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("wrong"),
        bearer(ALICE[:-1]),
        bearer(ALICE + "x"),
        {"Authorization": ALICE},
        {"Authorization": f"Basic {ALICE}"},
        {"Authorization": "Basic é"},
        basic(hash_of(ALICE)),
        bearer(hash_of(ALICE)),
        {"X-Api-Key": ALICE},
    ],
)
def test_what_is_no_key_opens_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    assert ask(KeyRing(key_file(tmp_path)), "GET", "/v1/models", raw).status_code == 401  # type: ignore[arg-type]


def test_two_headers_are_none(tmp_path: Path) -> None:
    headers = [("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {BOB}")]
    assert ask(KeyRing(key_file(tmp_path)), "GET", "/v1/models", headers).status_code == 401  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [ALICE, BOB], ids=["alice", "bob"])
def test_a_key_opens_what_there_is(tmp_path: Path, key: str) -> None:
    keys = KeyRing(key_file(tmp_path))
    for path in ("/v1/models", "/metrics", "/dashboard", "/v1/goose/live"):
        assert ask(keys, "GET", path, bearer(key)).status_code == 200
    assert ask(keys, "POST", "/v1/chat/completions", bearer(key), json=CHAT).status_code == 200


def test_a_browser_is_asked_for_a_password_that_only_shows_things(tmp_path: Path) -> None:
    keys = KeyRing(key_file(tmp_path))
    asked = ask(keys, "GET", "/dashboard").headers.get_list("www-authenticate")
    assert [scheme.split()[0] for scheme in asked] == ["Bearer", "Basic"]
    assert ask(keys, "GET", "/v1/goose/live").headers.get_list("www-authenticate") == ['Bearer realm="goose"']
    assert ask(keys, "GET", "/dashboard", basic(ALICE)).status_code == 200
    assert ask(keys, "GET", "/v1/goose/live", basic(ALICE)).status_code == 200
    assert ask(keys, "POST", "/v1/chat/completions", basic(ALICE), json=CHAT).status_code == 401


def test_the_key_of_the_environment_is_one_more(tmp_path: Path) -> None:
    other = new_key()
    keys = KeyRing(key_file(tmp_path), hash_of(other))
    assert ask(keys, "GET", "/v1/models", bearer(other)).status_code == 200
    assert ask(keys, "GET", "/v1/models", bearer(BOB)).status_code == 200
    assert ask(KeyRing(None, hash_of(other)), "GET", "/v1/models", bearer(BOB)).status_code == 401


def test_nobody_is_asked_where_there_are_no_keys() -> None:
    assert ask(None, "GET", "/v1/models").status_code == 200
