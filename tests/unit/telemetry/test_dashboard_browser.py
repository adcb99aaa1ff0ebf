"""The dashboard in a real browser: it draws what the server says, and runs nothing of it."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from browser import Browser, browser_in
from scripted_backend import LIMITS, ScriptedBackend

from goose_ray.api.auth.api_key import hash_of, new_key
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.http_app import build_http_app
from goose_ray.engine.tree_trace import TreeRecord
from goose_ray.telemetry.dashboard.history import Sample
from goose_ray.telemetry.dashboard.live import ReplicaLive

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>&amp;\"'"


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return browser_in(tmp_path)


@contextmanager
def serving(backend: ScriptedBackend, model: str, keys: KeyRing | None = None) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(build_http_app(backend, model, limits=LIMITS, keys=keys), log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/dashboard"
        finally:
            server.should_exit = True
            thread.join()


def told(text: str) -> ScriptedBackend:
    backend = ScriptedBackend()
    now = time.time()
    samples = tuple(
        Sample(now - 120 + 4 * i, 100 * i, 50 * i, {"context": (60 * i, 30 * i), "pool": (40 * i, 4 * i)})
        for i in range(31)
    )
    tree = TreeRecord(7, (-1, 0, 1, 0), (0, 1, 1, 4), (1.0, 0.9, 0.5, 0.1), (1, 2), None)
    backend.live_replicas = [ReplicaLive(text, samples, (tree,), ((text,) * 4,))]
    return backend


def test_the_page_draws_what_the_server_says(browser: Browser) -> None:
    with serving(told("r1"), "tiny") as url:
        visit = browser.visit(url)
    assert visit.complaints == ()
    assert re.search(r'<p id="status"[^>]*>1 of 1 replicas healthy', visit.html)
    # a tree of three draft nodes, two of them accepted
    assert "r1, step 7: 3 drafted, 2 accepted" in visit.html
    assert re.search(r'aria-label="Tree of 3 draft nodes, 2 accepted"', visit.html)
    assert len(re.findall(r'class="edge s\d', visit.html)) >= 3
    assert len(re.findall(r'class="edge s0 accepted', visit.html)) == 2
    # tokens/s, tau, and drift: 25 a second, tau 2, a half of context's
    assert "<b>25</b>" in visit.html
    assert "<b>2</b>" in visit.html
    assert len(re.findall(r'<circle class="fill s0" cx', visit.html)) > 10


def test_what_the_server_says_stays_text(browser: Browser) -> None:
    with serving(told(HOSTILE), HOSTILE) as url:
        visit = browser.visit(url)
    assert visit.complaints == ()
    assert "<title>goose</title>" in visit.html
    assert "&lt;script&gt;document.title" in visit.html
    assert not re.search(r"<img|<script>document", visit.html)


def test_a_server_that_is_away_is_told(browser: Browser) -> None:
    backend = told("r1")
    backend.script = []

    async def fails(since: float) -> list[ReplicaLive]:
        raise RuntimeError("away")

    backend.live = fails  # type: ignore[method-assign]
    with serving(backend, "tiny") as url:
        visit = browser.visit(url)
    assert "not reachable: the server answers 500" in visit.html


@pytest.mark.parametrize("width", [360, 1280])
def test_it_draws_on_small_and_large_screens_and_dark_ones(browser: Browser, tmp_path: Path, width: int) -> None:
    with serving(told("r" * 60), "tiny") as url:
        visit = browser.picture(url, tmp_path / "page.png", width=width, height=900, dark=True)
    assert visit.complaints == ()
    assert (tmp_path / "page.png").read_bytes()[16:20] == width.to_bytes(4, "big")


def test_a_key_given_as_a_password_opens_the_page_and_all_that_it_asks_for(browser: Browser) -> None:
    key = new_key()
    with serving(told("r1"), "tiny", KeyRing(None, hash_of(key))) as url:
        visit = browser.visit(url.replace("http://", f"http://me:{key}@"))
        refused = browser.visit(url)
    assert visit.complaints == ()
    assert re.search(r'<p id="status"[^>]*>1 of 1 replicas healthy', visit.html)
    assert key not in visit.html
    assert 'id="status"' not in refused.html
