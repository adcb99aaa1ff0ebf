"""The README's first requests, typed as they stand there: all that is changed is the port."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from goose_ray.cli.main import main
from serve.helpers import Server

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
FIRST = README.split("## First request")[1].split("\n## ")[0]
SERVE, CHAT, CURL = re.findall(r"```console\n\$ (.*?)```", FIRST, re.DOTALL)
[SHOWN] = re.findall(r"```json\n(.*?)```", FIRST, re.DOTALL)
[PYTHON] = re.findall(r"```python\n(.*?)```", FIRST, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


def run(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_curl_answers_what_is_shown(server: Server) -> None:
    assert ADDRESS in CURL
    answer, shown = json.loads(run(["bash", "-c", CURL.replace(ADDRESS, server.url)])), json.loads(SHOWN)
    # how much is drafted depends on the machine
    goose, shown_goose = answer.pop("goose"), shown.pop("goose")
    assert goose.keys() == shown_goose.keys()
    assert goose["committed"] == shown_goose["committed"]
    assert contains(answer, shown)


def contains(whole: Any, part: Any) -> bool:
    """The README shortens answers: fields may be missing from `part`."""
    if isinstance(part, dict):
        return all(name in whole and contains(whole[name], value) for name, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


def test_goose_chat_says_the_same(server: Server) -> None:
    program, command, *arguments = shlex.split(CHAT)
    assert (program, command) == (".venv/bin/goose", "chat")
    told = CliRunner().invoke(main, ["chat", "--base-url", server.url, *arguments])
    assert told.exit_code == 0, told.output
    assert json.loads(SHOWN)["choices"][0]["message"]["content"] in told.stdout


def test_the_client_prints_the_answer(server: Server) -> None:
    assert ADDRESS in PYTHON
    printed = run([sys.executable, "-c", PYTHON.replace(ADDRESS, server.url)])
    [question] = re.findall(r'"content": "(.*?)"', PYTHON)
    assert printed == server.chat(question, max_tokens=64)["choices"][0]["message"]["content"]
