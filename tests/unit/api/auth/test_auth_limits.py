"""What each key may have: requests and tokens a minute, requests at once."""

import asyncio
from pathlib import Path

import httpx
import pytest
from keyed_server import ALICE, BOB, bearer, key_file, standing_still
from scripted_backend import CHAT, ScriptedBackend, client_of

from goose_ray.api.auth.allowance import Allowance
from goose_ray.api.auth.api_key import ApiKey
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.errors import RateLimitedError


def test_requests_a_minute(tmp_path: Path) -> None:
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
def test_tokens_are_charged_as_usage_counts_them(tmp_path: Path, stream: bool) -> None:
    """A prompt of 3 and two choices of 5 each: 13 a request."""
    body = {**CHAT, "n": 2, "stream": stream}

    async def num_answered(limit: int) -> int:
        folder = tmp_path / f"{limit}"
        folder.mkdir()
        keys = KeyRing(key_file(folder, tokens_per_minute=limit), clock=standing_still)
        async with client_of(ScriptedBackend(), keys) as client:
            answers = [await client.post("/v1/chat/completions", json=body, headers=bearer(ALICE)) for _ in range(4)]
        return [answer.status_code for answer in answers].index(429)

    assert asyncio.run(num_answered(13)) == 1
    assert asyncio.run(num_answered(15)) == 2
    assert asyncio.run(num_answered(28)) == 3


def test_requests_at_once_end_with_their_streams(tmp_path: Path) -> None:
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


def test_over_time_limits_hold() -> None:
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


def test_nobody_leaves_twice() -> None:
    with pytest.raises(RuntimeError):
        Allowance(standing_still).leave()
