"""The command `llm`, with an OpenAI-compatible endpoint in its `extra-openai-models.yaml`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llm", reason="make clients")

from clients.helpers import MODEL, Server

pytestmark = pytest.mark.usefixtures("isolated")
PROMPT = "Name three primary colours."


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    models = [{"model_id": "goose", "model_name": MODEL, "api_base": f"{server.url}/v1", "api_key_name": "goose"}]
    # YAML can be written as JSON
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    (tmp_path / "keys.json").write_text(json.dumps({"goose": "none"}))
    return tmp_path


def llm(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "LLM_USER_PATH": str(folder)}
    options = ["-m", "goose", "-o", "temperature", "0", "-o", "max_tokens", "24"]
    command = [sys.executable, "-m", "llm", *arguments, *options]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("how", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_an_answer(folder: Path, server: Server, how: tuple[str, ...]) -> None:
    assert llm(folder, PROMPT, *how).strip() == server.chat(PROMPT, max_tokens=24).strip()
