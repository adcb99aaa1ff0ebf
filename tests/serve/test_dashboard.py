"""The dashboard of a real server under load, in a real browser; with `GOOSE_SCREENSHOTS`, pictures of it there.

`make telemetry` sets both; pictures go to docs/.
"""

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from browser import Browser, browser_in
from click.testing import CliRunner

from goose_ray.cli.main import main
from serve.helpers import MODEL, Server, async_client, eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("GOOSE_CHROMIUM"), reason="GOOSE_CHROMIUM names no browser"),
]

# the automatic budget draws small trees on a busy machine
ENGINE = {"kv_cache_tokens": 8192, "budget": 32}
SERVER = {"autoscaling_config": {"min_replicas": 2, "max_replicas": 2, "target_ongoing_requests": 8}}

# Texts that repeat themselves, and such that do not.
PROMPTS = (
    "Write a Python class of a bank account with the methods deposit, withdraw and transfer.",
    "Repeat this list ten times: red, green, blue, yellow, orange.",
    "Write a JSON array of five people with name, age and city.",
    "Tell me a story about a lighthouse.",
    "Count from one to a hundred, in words.",
    "What is the difference between a virus and a bacterium?",
    "Explain to a child why the sky is blue.",
    "Write an SQL table of orders, and three queries of it.",
    "Give me a recipe of pancakes.",
    "Write a letter that asks for a day off.",
    "Name the planets with a sentence on each.",
)
_AT_ONCE = 8
_PATIENCE_S = 600
_MAX_PICTURE_BYTES = 300_000


@contextmanager
def under_load(server: Server) -> Iterator[None]:
    ending = threading.Event()

    async def client_of(number: int, client: openai.AsyncOpenAI) -> None:
        turn = number
        while not ending.is_set():
            messages: Any = [{"role": "user", "content": PROMPTS[turn % len(PROMPTS)]}]
            await client.chat.completions.create(model=MODEL, messages=messages, temperature=0.7, max_tokens=128)
            turn += 1

    async def clients() -> None:
        async with async_client(server, timeout=_PATIENCE_S) as client:
            await asyncio.gather(*(client_of(number, client) for number in range(_AT_ONCE)))

    thread = threading.Thread(target=asyncio.run, args=(clients(),))
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_the_dashboard_shows_two_replicas_at_work(server: Server, tmp_path: Path) -> None:
    folder = Path(os.environ.get("GOOSE_SCREENSHOTS", tmp_path))
    browser: Browser = browser_in(tmp_path)
    url = f"{server.url}/dashboard"

    def is_busy() -> bool:
        live = server.get("/v1/goose/live")
        rates = [replica["tokens_per_s"] for replica in live["replicas"] if replica["live"]]
        return len(rates) == 2 and all(rates) and len(live["history"]) >= 16 and len(live["trees"]) == 8

    with under_load(server):
        eventually(is_busy, within_s=300, what="a minute of work on two replicas")
        for name, size in {"dashboard.png": (1280, 2150), "dashboard-phone.png": (390, 3000)}.items():
            visit = browser.picture(url, folder / name, width=size[0], height=size[1])
            assert visit.complaints == ()
            assert (folder / name).stat().st_size < _MAX_PICTURE_BYTES

        def shows_what_was_accepted() -> bool:
            nonlocal visit
            visit = browser.visit(url)
            return re.search(r'class="edge s\d accepted', visit.html) is not None

        eventually(shows_what_was_accepted, within_s=120, what="a tree with an accepted node")
        top = CliRunner().invoke(main, ["top", "--base-url", server.url, "--once"])
    assert visit.complaints == ()
    assert "2 of 2 replicas healthy" in visit.html
    assert visit.html.count("<figure") > 1
    assert "2 of 2 replicas healthy" in top.output
    # no texts of users unless the configuration allows it
    assert all(tree["texts"] is None for tree in server.get("/v1/goose/live")["trees"])
