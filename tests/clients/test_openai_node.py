"""OpenAI's client for Node, installed from `package.json` here. `GOOSE_NODE_MODULES` names where."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from clients.helpers import MODEL, Server

pytestmark = pytest.mark.usefixtures("isolated")
SCRIPT = Path(__file__).with_name("openai_node.mjs")
PROMPT = "Name three primary colours."


def test_answers_streams_usage_models_and_errors(server: Server, tmp_path: Path) -> None:
    modules = os.environ.get("GOOSE_NODE_MODULES")
    if modules is None or shutil.which("node") is None:
        pytest.skip("make clients, with Node")
    # Node looks for modules beside the script.
    script = tmp_path / SCRIPT.name
    shutil.copy(SCRIPT, script)
    (tmp_path / "node_modules").symlink_to(Path(modules).resolve())
    ended = subprocess.run(["node", script, server.url, MODEL, PROMPT], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    expected = server.chat(PROMPT, max_tokens=24)
    assert (found["whole"], found["streamed"], found["helped"]) == (expected, expected, expected)
    assert found["usage"]["completion_tokens"] > 0
    assert (
        found["completion"]
        == server.post("/v1/completions", {"prompt": "One, two,", "max_tokens": 8})["choices"][0]["text"]
    )
    assert found["models"] == [MODEL]
    assert found["refused"] == {"kind": "BadRequestError", "status": 400, "param": "temperature"}
