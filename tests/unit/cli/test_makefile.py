"""The Makefile's list of its targets, and what it does without one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(*arguments: str) -> str:
    ended = subprocess.run(["make", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return ended.stdout


def test_help_lists_every_target() -> None:
    [phony] = re.findall(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    listed = re.findall(r"^make (\w+) +\S.*$", make("help"), re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())


def test_the_developers_environment_comes_without_its_tests(tmp_path: Path) -> None:
    told = make("--dry-run", "dev", f"VENV={tmp_path}/env")
    assert "-e '.[dev]'" in told
    assert "/bin/pytest" not in told


def test_an_installation_is_announced_before_it_begins(tmp_path: Path) -> None:
    told = make("--dry-run", "serve", f"VENV={tmp_path}/env")
    assert told.index("Installing into") < told.index("-m venv") < told.index("/pip install")
    assert "Installing" not in make("help")
