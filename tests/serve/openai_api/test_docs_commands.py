"""What the documentation says to type, typed as it stands there, each command once.

Changed are the port of the server, the model (the embedded one) and the files of prompts. A command that
starts a server prints what it would start; measurements are short ones. What a test cannot type here stands in
ELSEWHERE, with what tries it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_blocks import REPOSITORY, typed, written_in

from serve.helpers import Server

COMMANDS = list(dict.fromkeys(line for block in written_in("console") for line in typed(block.text)))
# By how a command begins: a test of ours, a target of make, or what it needs.
ELSEWHERE = {
    "GOOSE_API_KEYS_FILE=": "tests/unit/app/test_config.py",
    "RAY_AUTH_MODE=token serve deploy": "a cluster of several machines",
    "RAY_AUTH_MODE=token serve status": "the server's own Ray and its token",
    "docker": "Docker",
    "git clone": "the repository's address",
    "grafana": "Grafana",
    "goose bench device --model": "the same with the embedded model",
    "kubectl": "Kubernetes",
    ".ci/run": "make test",
    "make": "make itself",
    "pip install": "a package index",
    "prometheus": "make telemetry",
    "ray get-auth-token": "a home directory of its own",
    "ray up": "a cloud",
    "serve run": "tests/serve/application.py",
    "OMP_NUM_THREADS=1 .venv/bin/pytest": "make test",
}
# Shorter than by default.
SHORT = {
    "goose bench cost": "--rounds 1",
    "goose bench device": "--limit 1 --max-tokens 4 --rounds 1",
    "goose bench engine": "--max-tokens 8",
    "goose bench exact": "--max-tokens 8 --concurrency 1",
    "goose bench tau": "--max-tokens 8",
    "goose calibrate --prompts": "--max-tokens 16",
    "goose record": "--max-tokens 16",
    "goose serve": "--print-config",
}
PROMPT = {"id": "own/1", "prompt": "Write one line after the other. Write one line after the"}


def here(command: str) -> bool:
    return not command.startswith(tuple(ELSEWHERE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all are typed, in the order of the pages: some read what others have written."""
    folder = tmp_path_factory.mktemp("typed")
    for name in {name for command in COMMANDS for name in re.findall(r"\b([a-z][\w/]+\.jsonl)", command)}:
        if name != "keys.jsonl":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(PROMPT) + "\n", encoding="utf-8")
    return folder


def adapted(command: str, port: int) -> str:
    command = re.sub(r" --model \S+", "", command.replace(".venv/bin/", "")).replace(
        "127.0.0.1:8000", f"127.0.0.1:{port}"
    )
    program, *comment = re.split(r"(?= +[#>] ?)", command, maxsplit=1)
    for beginning, options in SHORT.items():
        if program.startswith(beginning) and options not in program:
            program += f" {options}"
    return re.sub(r"^curl ", "curl --fail-with-body ", program) + "".join(comment)


def state_of(path: Path) -> list[tuple[Path, int, int]]:
    """Of a file, or of those in a folder: with when it was written, and how long it is."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(file, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file()]


@pytest.mark.parametrize("command", [command for command in COMMANDS if here(command)])
def test_a_command_does_what_is_said(server: Server, folder: Path, command: str) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs, "OPENAI_BASE_URL": server.url, "OMP_NUM_THREADS": "1"}
    told = [folder / name for name in re.findall(r"(?:> *|--out |--file )([\w./-]+)", command)]
    before = [state_of(path) for path in told]
    ended = subprocess.run(
        ["bash", "-c", adapted(command, port)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    if command.startswith("goose doctor"):
        # what it finds is the machine's: a port that is taken, no GPU
        assert ended.returncode in (0, 1), ended.stderr
    else:
        assert ended.returncode == 0, ended.stderr + ended.stdout
    for path, old in zip(told, before, strict=True):
        new = state_of(path)
        assert new != old
        assert all(size for _, _, size in new)
    assert told or ended.stdout


def test_a_line_that_goes_on_is_one_command() -> None:
    assert list(typed("$ echo a \\\n    b\n$ echo 'c\nd'\n")) == ["echo a     b", "echo 'c\nd'"]


def test_what_is_tried_elsewhere_is_in_the_documentation_and_its_tests_exist() -> None:
    for beginning, where in ELSEWHERE.items():
        assert any(command.startswith(beginning) for command in COMMANDS), beginning
        assert (REPOSITORY / where).is_file() or not where.startswith("tests/"), where
