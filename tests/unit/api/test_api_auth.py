"""A server with keys: who gets in, what each may have, and what tenants have in common."""

import asyncio
import base64
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from fastapi.routing import APIRoute
from scripted_backend import CHAT, LIMITS, MODEL, SCRIPT, ScriptedBackend, client_of
from starlette.routing import Route

from goose_ray.api.auth.allowance import Allowance
from goose_ray.api.auth.api_key import ApiKey, hash_of, new_key
from goose_ray.api.auth.key_file import append_key, read_keys, revoke_keys
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.http_app import build_http_app
from goose_ray.errors import ConfigError, EngineDeadError, RateLimitedError

ALICE, BOB = new_key(), new_key()
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "MADEUP")


def key_file(folder: Path, **limits: int) -> Path:
    path = folder / "keys.jsonl"
    append_key(path, ApiKey(name="alice", sha256=hash_of(ALICE), **limits))
    append_key(path, ApiKey(name="bob", sha256=hash_of(BOB)))
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


def ask(
    keys: KeyRing | None,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    backend: ScriptedBackend | None = None,
    **options: Any,
) -> httpx.Response:
    async def send() -> httpx.Response:
        async with client_of(backend or ScriptedBackend(), keys) as client:
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(send())


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


def standing_still() -> float:
    return 0.0


class TestGate:
    def test_every_route_but_health_wants_a_key(self, tmp_path: Path) -> None:
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

    def test_a_socket_wants_a_key(self, tmp_path: Path) -> None:
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
    def test_what_is_no_key_opens_nothing(self, tmp_path: Path, headers: dict[str, str]) -> None:
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        assert ask(KeyRing(key_file(tmp_path)), "GET", "/v1/models", raw).status_code == 401  # type: ignore[arg-type]

    def test_two_headers_are_none(self, tmp_path: Path) -> None:
        headers = [("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {BOB}")]
        assert ask(KeyRing(key_file(tmp_path)), "GET", "/v1/models", headers).status_code == 401  # type: ignore[arg-type]

    @pytest.mark.parametrize("key", [ALICE, BOB], ids=["alice", "bob"])
    def test_a_key_opens_what_there_is(self, tmp_path: Path, key: str) -> None:
        keys = KeyRing(key_file(tmp_path))
        for path in ("/v1/models", "/metrics", "/dashboard", "/v1/goose/live"):
            assert ask(keys, "GET", path, bearer(key)).status_code == 200
        assert ask(keys, "POST", "/v1/chat/completions", bearer(key), json=CHAT).status_code == 200

    def test_a_browser_is_asked_for_a_password_that_only_shows_things(self, tmp_path: Path) -> None:
        keys = KeyRing(key_file(tmp_path))
        asked = ask(keys, "GET", "/dashboard").headers.get_list("www-authenticate")
        assert [scheme.split()[0] for scheme in asked] == ["Bearer", "Basic"]
        assert ask(keys, "GET", "/v1/goose/live").headers.get_list("www-authenticate") == ['Bearer realm="goose"']
        assert ask(keys, "GET", "/dashboard", basic(ALICE)).status_code == 200
        assert ask(keys, "GET", "/v1/goose/live", basic(ALICE)).status_code == 200
        assert ask(keys, "POST", "/v1/chat/completions", basic(ALICE), json=CHAT).status_code == 401

    def test_the_key_of_the_environment_is_one_more(self, tmp_path: Path) -> None:
        other = new_key()
        keys = KeyRing(key_file(tmp_path), hash_of(other))
        assert ask(keys, "GET", "/v1/models", bearer(other)).status_code == 200
        assert ask(keys, "GET", "/v1/models", bearer(BOB)).status_code == 200
        assert ask(KeyRing(None, hash_of(other)), "GET", "/v1/models", bearer(BOB)).status_code == 401

    def test_nobody_is_asked_where_there_are_no_keys(self) -> None:
        assert ask(None, "GET", "/v1/models").status_code == 200


class TestTenants:
    def test_no_two_have_a_salt_in_common(self, tmp_path: Path) -> None:
        keys, backend = KeyRing(key_file(tmp_path)), ScriptedBackend()
        for key in (ALICE, BOB):
            for salt in ({}, {"cache_salt": "s"}, {"cache_salt": "alice:s"}):
                ask(keys, "POST", "/v1/chat/completions", bearer(key), backend, json={**CHAT, **salt})
        salts = [call.cache_salt for call in backend.calls]
        assert len(set(salts)) == 6
        assert None not in salts

    def test_one_finds_its_own_again(self, tmp_path: Path) -> None:
        keys, backend = KeyRing(key_file(tmp_path)), ScriptedBackend()
        for _ in range(2):
            ask(keys, "POST", "/v1/completions", bearer(ALICE), backend, json={"model": MODEL, "prompt": "x"})
        assert backend.calls[0].cache_salt == backend.calls[1].cache_salt

    def test_neither_keys_nor_texts_are_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        keys, secret = KeyRing(key_file(tmp_path)), "the-text-of-a-prompt"
        chat = {**CHAT, "messages": [{"role": "user", "content": secret}]}
        for script in (SCRIPT, [EngineDeadError("dead")], [ZeroDivisionError("fault")]):
            for body in (chat, {**chat, "stream": True}, {**chat, "temperature": secret}):
                ask(keys, "POST", "/v1/chat/completions", bearer(ALICE), ScriptedBackend(script), json=body)
        ask(keys, "POST", "/v1/chat/completions", bearer(ALICE + "x"), json=chat)
        assert "dead" in caplog.text
        for text in (ALICE, hash_of(ALICE), secret):
            assert text not in caplog.text


class TestLimits:
    def test_requests_a_minute(self, tmp_path: Path) -> None:
        keys = KeyRing(key_file(tmp_path, requests_per_minute=2), clock=standing_still)

        async def scenario() -> list[httpx.Response]:
            async with client_of(ScriptedBackend(), keys) as client:
                paths = ["/v1/chat/completions"] * 3
                answers = [await client.post(path, json=CHAT, headers=bearer(ALICE)) for path in paths]
                answers.append(await client.post("/v1/chat/completions", json=CHAT, headers=bearer(BOB)))
                answers.append(await client.get("/metrics", headers=bearer(ALICE)))
                return answers

        answers = asyncio.run(scenario())
        assert [answer.status_code for answer in answers] == [200, 200, 429, 200, 200]
        error = answers[2].json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert 0 < int(answers[2].headers["retry-after"]) <= 30

    @pytest.mark.parametrize("stream", [False, True])
    def test_tokens_are_charged_as_usage_counts_them(self, tmp_path: Path, stream: bool) -> None:
        """A prompt of 3 and two choices of 5 each: 13 a request."""
        body = {**CHAT, "n": 2, "stream": stream}

        async def num_answered(limit: int) -> int:
            folder = tmp_path / f"{limit}"
            keys = KeyRing(key_file(folder, tokens_per_minute=limit), clock=standing_still)
            async with client_of(ScriptedBackend(), keys) as client:
                answers = [
                    await client.post("/v1/chat/completions", json=body, headers=bearer(ALICE)) for _ in range(4)
                ]
            return [answer.status_code for answer in answers].index(429)

        assert asyncio.run(num_answered(13)) == 1
        assert asyncio.run(num_answered(15)) == 2
        assert asyncio.run(num_answered(28)) == 3

    def test_requests_at_once_end_with_their_streams(self, tmp_path: Path) -> None:
        async def scenario() -> list[int]:
            backend = ScriptedBackend()
            backend.gate = asyncio.Event()
            async with client_of(backend, KeyRing(key_file(tmp_path, max_concurrent_requests=1))) as client:

                async def post() -> httpx.Response:
                    body = {**CHAT, "stream": True}
                    return await client.post("/v1/chat/completions", json=body, headers=bearer(ALICE))

                first = asyncio.create_task(post())
                while not backend.calls:
                    await asyncio.sleep(0)
                second = await post()
                backend.gate.set()
                return [(await first).status_code, second.status_code, (await post()).status_code]

        assert asyncio.run(scenario()) == [200, 429, 200]

    def test_over_time_limits_hold(self) -> None:
        now = 0.0
        allowance = Allowance(lambda: now)
        key = ApiKey(name="a", sha256="0" * 64, tokens_per_minute=600)
        taken = 0
        for _ in range(3000):
            try:
                allowance.enter(key)
            except RateLimitedError as error:
                # coming back when told to is enough
                now += error.retry_after_s
                allowance.enter(key)
            allowance.charge(key, 37)
            allowance.leave()
            taken += 37
            now += 0.1
        # what ten minutes pay off, the first minute's, and one request too many
        assert taken <= 600 * (now / 60 + 1) + 37
        assert taken > 600 * now / 60 * 0.95

    def test_nobody_leaves_twice(self) -> None:
        with pytest.raises(RuntimeError):
            Allowance(standing_still).leave()


class TestKeyFile:
    def test_it_keeps_no_key_and_is_its_owners(self, tmp_path: Path) -> None:
        path = key_file(tmp_path)
        assert path.stat().st_mode & 0o077 == 0
        assert ALICE not in path.read_text()
        assert [key.name for key in read_keys(path)] == ["alice", "bob"]

    def test_a_change_is_seen_and_a_broken_file_changes_nothing(self, tmp_path: Path) -> None:
        now = 0.0
        path = key_file(tmp_path)
        keys = KeyRing(path, clock=lambda: now)
        assert revoke_keys(path, "alice") == 1
        assert keys.find(ALICE) is not None
        now = 2.0
        assert keys.find(ALICE) is None
        assert keys.find(BOB) is not None
        path.write_text("{")
        now = 4.0
        assert keys.find(BOB) is not None
        path.unlink()
        now = 6.0
        assert keys.find(BOB) is not None

    def test_comments_and_an_open_last_line_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.jsonl"
        path.write_text("# ours\n\n" + ApiKey(name="alice", sha256=hash_of(ALICE)).model_dump_json())
        append_key(path, ApiKey(name="bob", sha256=hash_of(BOB)))
        assert [key.name for key in read_keys(path)] == ["alice", "bob"]
        assert revoke_keys(path, "bob") == 1
        assert path.read_text().startswith("# ours\n\n")
        assert revoke_keys(path, "bob") == 0

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "has no key"),
            ("# nothing\n", "has no key"),
            ("sk-goose-in-plain\n", "line 1"),
            ('{"name": "a", "sha256": "sk-goose-in-plain"}', "line 1: sha256"),
            ('{"name": "a b", "sha256": "' + "0" * 64 + '"}', "line 1: name"),
            ('\n{"name": "a", "sha256": "' + "0" * 64 + '", "limit": 3}', "line 2: limit"),
        ],
    )
    def test_a_wrong_line_is_named_and_not_shown(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "keys.jsonl"
        path.write_text(text)
        with pytest.raises(ConfigError, match=says) as raised:
            KeyRing(path)
        assert "in-plain" not in str(raised.value)

    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            KeyRing(tmp_path / "none")


def test_deployments_are_for_their_own_machine_unless_told_otherwise() -> None:
    files = sorted((Path(__file__).parents[3] / "deployments").glob("*.yaml"))
    assert files
    for file in files:
        assert yaml.safe_load(file.read_text("utf-8"))["http_options"]["host"] == "127.0.0.1", file.name
