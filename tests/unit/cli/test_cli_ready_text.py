"""What `goose serve` prints when it is ready: commands that can be typed as they stand there."""

import sys
from pathlib import Path

import pytest

from goose_ray.cli.ready_text import program, ready_text


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `goose` and `serve`, the first of which runs; the shell finds none."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    for name in ("goose", "serve"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(folder / "goose"), "serve"])
    monkeypatch.setenv("PATH", str(tmp_path))
    return folder


def test_a_program_that_the_shell_finds_goes_by_its_name(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    assert (program("goose"), program("serve")) == ("goose", "serve")


def test_else_it_goes_by_the_path_it_was_started_by(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program("serve") == f"'{programs}/serve'"
    monkeypatch.chdir(programs.parent)
    monkeypatch.setattr(sys, "argv", ["bin/goose"])
    assert (program("goose"), program("serve")) == ("bin/goose", "bin/serve")


def test_another_program_of_that_name_is_not_it(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "goose").touch(mode=0o755)
    assert program("goose") == f"'{programs}/goose'"
    # started in another way
    monkeypatch.setattr(sys, "argv", ["main.py"])
    assert program("goose") == "goose"


@pytest.mark.parametrize(("has_token", "token"), [(True, "RAY_AUTH_MODE=token "), (False, "")])
def test_serve_status_asks_the_dashboard_of_this_ray(
    programs: Path, monkeypatch: pytest.MonkeyPatch, has_token: bool, token: str
) -> None:
    monkeypatch.setenv("PATH", str(programs))
    told = ready_text("tiny", "http://127.0.0.1:8001", dashboard="127.0.0.1:8266", has_token=has_token)
    assert told.splitlines() == [
        "tiny is served at http://127.0.0.1:8001/v1, to be watched at http://127.0.0.1:8001/dashboard.",
        "Try `goose chat --base-url http://127.0.0.1:8001`. Ctrl-C stops the server.",
        f"Ray's view of it: `{token}serve status --address http://127.0.0.1:8266`.",
    ]


def test_who_asks_a_server_with_keys_needs_one() -> None:
    told = ready_text("tiny", "http://127.0.0.1:8001", dashboard=None, has_token=False, has_keys=True)
    assert "goose chat --base-url http://127.0.0.1:8001 --api-key KEY`" in told


@pytest.mark.parametrize("dashboard", [None, ""])
def test_without_a_dashboard_there_is_nothing_to_ask(dashboard: str | None) -> None:
    told = ready_text("tiny", "http://127.0.0.1:8001", dashboard=dashboard, has_token=True)
    assert "serve status" not in told
    assert len(told.splitlines()) == 2
