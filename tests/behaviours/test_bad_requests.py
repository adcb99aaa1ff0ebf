"""Bad requests by the thousand leave every count where it was: B18.

`make slots` sends 10,000; `make test` a seeded few hundred.
"""

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from engine_app import MODEL, EngineApp, Http
from engine_helpers import make_engine, make_request
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.policies.registry import POLICIES
from goose.request import DraftRequest
from goose.speculator import Speculator
from goose_ray.api.calls import Delta, GenerateCall
from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest, RequestOutput
from goose_ray.engine.sequence import SequenceState
from goose_ray.errors import InvalidRequestError

NUM_REQUESTS = int(os.environ.get("GOOSE_CHURN", "240"))
_AT_ONCE = 8
# What must not outlive its request.
_OF_REQUESTS = (GenerationRequest, SequenceState, OutputStream, GenerateCall, Delta, RequestOutput, DraftRequest)
_LONG = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}
_CHAT = {"messages": [{"role": "user", "content": "Hi"}]}

# What is wrong with a request: its path, its body, the status.
MALFORMED: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/completions", {"prompt": [1, 10**7]}, 400),
    ("/v1/completions", {"prompt": [-1]}, 400),
    ("/v1/completions", {"prompt": []}, 400),
    ("/v1/completions", {"prompt": "x" * 300}, 400),
    ("/v1/completions", {"prompt": [5] * 256, "max_tokens": 1}, 400),
    ("/v1/completions", {"prompt": "x", "max_tokens": 10**6}, 400),
    ("/v1/completions", {"prompt": "x", "logprobs": 21}, 400),
    ("/v1/completions", {"prompt": "x", "stop_token_ids": [10**6]}, 400),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"999999": 1}}, 400),
    ("/v1/completions", {"prompt": "x", "min_tokens": 9, "max_tokens": 3}, 400),
    ("/v1/completions", {"prompt": ["a", "b", [10**7]], "n": 2}, 400),
    ("/v1/completions", {"prompt": "x", "goose": {"policy": "swan"}}, 400),
    ("/v1/completions", {"prompt": "x", "model": "gpt-9"}, 404),
    ("/v1/chat/completions", {"messages": []}, 400),
    ("/v1/chat/completions", {**_CHAT, "temperature": -1}, 400),
    ("/v1/chat/completions", {**_CHAT, "top_logprobs": 2}, 400),
    ("/v1/chat/completions", {**_CHAT, "nonsense": 2}, 400),
]


def an_engine() -> Engine:
    model = looping_model(256)
    return make_engine(
        model,
        Speculator(policy="anisotropic", budget=12, harvest_k=2, pool_tokens=500),
        runner=FakeRunner(model, vocab_size=256, num_slots=768, max_model_len=256),
        tokenizer=FakeTokenizer(specials=(EOS,)),
        budget=12,
        max_batch_rows=64,
        max_running_requests=6,
        max_waiting_requests=4,
    )


async def gauges(http: Http, app: EngineApp) -> dict[str, float]:
    """Whatever can go up and down again."""
    text = (await http.get("/metrics")).text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" gauge")}
    found = {name: value for name, value in (await http.metrics()).items() if name.split("{")[0] in names}
    assert len(found) > 3
    gc.collect()
    alive = Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in _OF_REQUESTS)
    engine = app.engine
    engine.check_integrity()
    return {
        **found,
        **{f"alive {kind.__name__}": alive[kind.__name__] for kind in _OF_REQUESTS},
        "streams": len(app.loop._streams),
        "sequences": len(engine._sequences),
        "started drafts": len(engine._drafting._started),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "slots that can be had": engine._memory.num_available,
    }


async def settled(http: Http) -> None:
    """Waits until nothing runs: what was cancelled is gone before the next step."""
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting", "goose_kv_slots_used")
    while sum(value for name, value in (await http.metrics()).items() if name.startswith(busy)):
        await asyncio.sleep(0.001)
    # An asynchronous generator that is found to be garbage is closed by the event loop, a little later.
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)


async def refused(http: Http, random: Random) -> int:
    path, body, status = random.choice(MALFORMED)
    # Of several prompts in a stream a good one may have begun before a bad one is looked at.
    stream = random.random() < 0.5 and "prompt" not in body
    response = await http.post(path, json={"model": MODEL, "stream": stream, **body})
    assert response.status_code == status, (body, response.text)
    assert response.json()["error"]["type"] == "invalid_request_error"
    return response.status_code


async def no_json(http: Http, random: Random) -> int:
    content = random.choice(
        [b"", b"{", b'{"model": "tiny"', b"[]", b"null", b"\xff\xfe", b'{"prompt": "\xed\xa0\x80"}']
    )
    response = await http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    return response.status_code


async def left(http: Http, random: Random) -> int:
    """The client goes away: before its request is read, while it waits, in the middle of its answer."""
    body = {
        "model": MODEL,
        **_LONG,
        "stream": random.random() < 0.5,
        "n": random.choice([1, 1, 3]),
        "goose": {"policy": random.choice(list(POLICIES))},
        "seed": 1,
        "cache_salt": random.choice(["a", "b"]),
    }
    sending = asyncio.create_task(http.post("/v1/completions", json=body))
    for _ in range(random.choice([0, 1, 3, 10, 40])):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    return 0 if sending.cancelled() else sending.result().status_code


async def answered(http: Http, random: Random) -> int:
    """A good one between the others; where there are too many, it is told to come back later."""
    body = {"model": MODEL, "prompt": "x" * random.randint(1, 60), "max_tokens": random.randint(1, 9)}
    return (await http.post("/v1/completions", json=body)).status_code


_KINDS: tuple[Callable[[Http, Random], Any], ...] = (refused, refused, no_json, left, left, answered)


def test_b18_bad_requests_leave_every_gauge_where_it_was() -> None:
    # DeepSpeed-MII 489
    random = Random(18)

    async def scenario(http: Http) -> Counter[int]:
        statuses: Counter[int] = Counter()
        before: dict[str, float] | None = None
        good = await http.whole("/v1/completions", prompt="Hello", max_tokens=9, temperature=0)
        sent = 0
        while sent < NUM_REQUESTS:
            kinds = random.choices(_KINDS, k=_AT_ONCE)
            statuses.update(await asyncio.gather(*(kind(http, random) for kind in kinds)))
            sent += _AT_ONCE
            if before is None and sent >= NUM_REQUESTS // 4:
                # Threads that are started when they are first needed are there by now, and policies are built.
                await settled(http)
                before = await gauges(http, app)
        await settled(http)
        assert await gauges(http, app) == before
        again = await http.whole("/v1/completions", prompt="Hello", max_tokens=9, temperature=0)
        assert again["choices"] == good["choices"]
        return statuses

    with EngineApp.serving(an_engine()) as app:
        statuses = app.run(scenario)
        stats = app.loop.stats()
    assert set(statuses) <= {0, 200, 400, 404, 429, 499}
    assert statuses[400] > NUM_REQUESTS / 4
    assert statuses[0] > NUM_REQUESTS / 10
    assert stats.num_draft_errors == 0


def test_b18_ten_thousand_refusals_count_for_nothing() -> None:
    engine = an_engine()
    before = engine.stats()
    for number in range(10_000):
        with pytest.raises(InvalidRequestError):
            engine.add_request(make_request(str(number), prompt=() if number % 2 else [1] * 300))
    assert engine.stats() == before
    engine.check_integrity()


@pytest.mark.parametrize("at", range(6))
def test_b18_cancelled_in_the_step_that_ends_it(at: int) -> None:
    """Leaving and finishing at once, in either order, frees a sequence once."""
    engine = an_engine()
    request = make_request(prompt=(65, 66), max_tokens=at + 1)
    for _ in range(3):
        engine.add_request(request)
        finished = False
        while engine.has_work:
            finished |= any(output.finish_reason for output in engine.step())
        assert finished
        engine.cancel("r")
        engine.cancel("r")
        engine.check_integrity()
        engine.add_request(request)
        for _ in range(at):
            engine.step()
        engine.cancel("r")
        engine.check_integrity()
        assert engine.stats().kv_slots_used == 0
        assert not engine.has_work
