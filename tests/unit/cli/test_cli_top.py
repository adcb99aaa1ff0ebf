"""`goose top`: the dashboard's numbers in a terminal, from a server over HTTP."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from click.testing import CliRunner
from http_answers import answering
from telemetry_builders import report_of

from goose_ray.bench.prompts import CALIBRATION_PROMPTS
from goose_ray.cli.main import main
from goose_ray.engine.tree_trace import TreeRecord
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.dashboard.history import Sample
from goose_ray.telemetry.dashboard.live import ReplicaLive, live_view
from goose_ray.telemetry.dashboard.terminal import render_live

# ●C─c     0 - 1 - 2: context, 1 accepted; 3 below 1, of the pool; 4 and 5 below 0, of the transitions
TREE = TreeRecord(9, (-1, 0, 1, 1, 0, 0, 5), (0, 1, 1, 4, 2, 2, 2), (1.0,) * 7, (1,), None)


def live(**replica: Any) -> dict[str, Any]:
    state = AcceptanceState(live_for_s=10)
    known: dict[str, Any] = {"replica_id": "ra", "num_requests_running": 3, "kv_slots_used": 1, "kv_slots_total": 4}
    state.observe(report_of("a", 1, {"context": (10, 5)}, **known | replica), 0)
    samples = (Sample(1000.0, 0, 0, {}), Sample(1020.0, 500, 200, {}))
    lives = [ReplicaLive("ra", samples, (TREE,))]
    return live_view(state.view(0), lives, model="tiny", remembered=True, since=0.0, now=1030.0)


@contextmanager
def serving(status: int, body: bytes, keys: list[str | None] | None = None) -> Iterator[str]:
    """What is asked with comes into `keys`."""
    seen = [] if keys is None else keys

    def status_of(asked: BaseHTTPRequestHandler) -> int:
        assert asked.path == "/v1/goose/live"
        seen.append(asked.headers["Authorization"])
        return status

    with answering(body, status_of) as port:
        yield f"http://127.0.0.1:{port}"


def test_the_numbers_of_the_page() -> None:
    text = "\n".join(render_live(live(), width=80, colour=False))
    assert "tiny   1 of 1 replicas healthy" in text
    assert "25.0 tokens/s   tau 2.50   3 running   0 waiting   KV 25 %" in text
    assert "context      ██████████··········   50 % of 10   by depth, %: 50" in text
    assert "tokens/s  ████     25.0" in text
    assert "\x1b" not in text


def test_a_tree_is_drawn_with_its_sources_and_what_was_accepted() -> None:
    lines = render_live(live(), width=80, colour=False)
    start = lines.index("ra, step 9: 6 drafted, 1 accepted (upper case)")
    assert lines[start + 1 :] == [
        " ●═C─c",
        "  │ └p",
        "  ├t─t",
        "  └t",
    ]


def test_colours_are_the_sources() -> None:
    coloured = "\n".join(render_live(live(), width=80, colour=True))
    assert "\x1b[34mC\x1b[0m" in coloured
    assert "\x1b[32mp\x1b[0m" in coloured


def test_no_name_moves_the_cursor_and_no_line_is_too_long() -> None:
    lines = render_live(live(replica_id="\x1b[2J" + "x" * 300 + "\r"), width=60, colour=False)
    assert not any(character in line for line in lines for character in "\x1b\r\n")
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("width", range(68, 80))
def test_no_number_is_cut_in_two(width: int) -> None:
    view = live()
    view["sources"]["context"]["by_depth"] = [[depth, depth, 4, 4] for depth in range(1, 9)]
    [line] = [line for line in render_live(view, width=width, colour=False) if line.startswith("context ")]
    *numbers, last = line.partition("depth, %: ")[2].split()
    assert len(line) <= width
    assert set(numbers) == {"100"}
    assert last == "…"


def test_a_replica_that_is_down_is_named() -> None:
    lines = render_live(live(healthy=False), width=80, colour=False)
    assert any(line.startswith("ra") and "unhealthy" in line for line in lines)


def test_once_and_as_json() -> None:
    with serving(200, json.dumps(live()).encode()) as url:
        shown = CliRunner().invoke(main, ["top", "--base-url", url, "--once"])
        as_json = CliRunner().invoke(main, ["top", "--base-url", f"{url}/v1/", "--once", "--json"])
        by_its_old_name = CliRunner().invoke(main, ["top", "--url", url, "--once"])
    assert shown.exit_code == 0, shown.output
    assert "replicas healthy" in shown.output
    assert json.loads(as_json.stdout)["object"] == "goose.live"
    assert by_its_old_name.exit_code == 0


def test_a_key_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str | None] = []
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(200, json.dumps(live()).encode(), keys) as url:
        for options in ([], ["--api-key", "sesame"]):
            assert CliRunner().invoke(main, ["top", "--base-url", url, "--once", "--json", *options]).exit_code == 0
    assert keys == [None, "Bearer sesame"]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b"{}", "answers 503"),
        (404, b"<!DOCTYPE HTML>\n<html>", "answers 404: is it a goose server?"),
        (200, b"<html>", "cannot be read"),
        (200, b"{}", "is no goose server"),
    ],
)
def test_what_is_no_server_is_told_and_fails(status: int, body: bytes, said: str) -> None:
    with serving(status, body) as url:
        result = CliRunner().invoke(main, ["top", "--base-url", url, "--once"])
    assert result.exit_code == 1
    assert said in result.output


@pytest.mark.parametrize("options", [[], ["--api-key", "wrong"]])
def test_a_key_that_is_wanted_is_told_with_its_options(options: list[str]) -> None:
    body = json.dumps({"error": {"message": "no such key"}}).encode()
    with serving(401, body) as url:
        result = CliRunner().invoke(main, ["top", "--base-url", url, "--once", *options])
    assert result.exit_code == 1
    assert "answers 401: no such key; give a key with --api-key or OPENAI_API_KEY" in result.stderr


@pytest.mark.parametrize(
    "command", [("top", "--once"), ("chat", "hello"), ("bench", "exact", "--prompts", str(CALIBRATION_PROMPTS))]
)
@pytest.mark.parametrize("url", ["http://user:SECRET@host", "user:SECRET@host", "http://user:SEC/RET@host:x"])
def test_a_password_in_an_address_is_refused_and_not_shown(command: tuple[str, ...], url: str) -> None:
    result = CliRunner().invoke(main, [*command, "--base-url", url])
    assert result.exit_code == 2
    assert "--api-key" in result.stderr
    assert "SEC" not in result.output


def test_a_server_that_is_not_there_is_told_as_chat_tells_it() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        # bound, and nobody listens
        result = CliRunner().invoke(main, ["top", "--base-url", url, "--once"])
    assert result.exit_code == 1
    assert re.search(rf"{url} cannot be reached \(.*refused\): is `goose serve` running\?", result.output)


def test_an_address_must_be_one_of_the_web() -> None:
    result = CliRunner().invoke(main, ["top", "--base-url", "file:///etc/passwd", "--once"])
    assert result.exit_code != 0
    assert "must begin with http" in result.output


@pytest.mark.parametrize(
    "url", ["http://", "http://127.0.0.1:port", "http://127.0.0.1:99999", "http://[::1", "http://a b"]
)
@pytest.mark.parametrize("command", [("top", "--once", "--url"), ("chat", "hello", "--base-url")])
def test_what_is_no_address_is_a_wrong_command_line(command: tuple[str, ...], url: str) -> None:
    result = CliRunner().invoke(main, [*command, url])
    assert result.exit_code == 2
    assert f"not {url!r}" in result.stderr


@pytest.mark.parametrize("command", [("top", "--once"), ("chat", "hello")])
def test_what_no_header_can_hold_is_no_key_and_is_not_shown(command: tuple[str, ...]) -> None:
    for key in ("sesame\n", "s\xe9same"):
        result = CliRunner().invoke(main, [*command, "--api-key", key])
        assert result.exit_code == 2
        assert "--api-key" in result.stderr
        assert "same" not in result.stderr
