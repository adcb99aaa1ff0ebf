"""What measures servers: guidellm itself, and requests in the form of `vllm bench serve`."""

import json
import os
import subprocess
import sys
import urllib.request
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from clients.helpers import MODEL, TIMEOUT_S, Server

pytestmark = pytest.mark.usefixtures("isolated")


def events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a stream, up to [DONE]."""
    data = json.dumps({"model": MODEL, **body}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=TIMEOUT_S) as answer:
        lines = [line.decode().strip() for line in answer if line.strip()]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "Once upon a time", "logprobs": None}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}),
    ],
)
def test_requests_as_vllm_bench_serve_sends_them(server: Server, path: str, prompt: dict[str, Any]) -> None:
    limit = {"max_completion_tokens": 12} if "chat" in path else {"max_tokens": 12, "repetition_penalty": 1.0}
    sent = {**prompt, **limit, "temperature": 0.0, "ignore_eos": True, "stream": True}
    found = events(server, path, {**sent, "stream_options": {"include_usage": True}})
    # it takes the time of the first token from the first chunk with a choice, the tokens from usage
    assert found[0]["choices"]
    assert found[-1]["usage"]["completion_tokens"] == 12
    assert not found[-1]["choices"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_guidellm(server: Server, tmp_path: Path, path: str) -> None:
    report = tmp_path / "benchmarks.json"
    # On a busy machine its own process may not get a turn within the five seconds that it allows for connecting.
    backend = f"target={server.url},model={MODEL},request_format={path},timeout_connect={TIMEOUT_S}"
    options = {
        "--backend": f"kind=openai_http,{backend}",
        "--profile": "kind=synchronous",
        "--constraint": "kind=max_requests,count=3",
        "--tokenizer": f"kind=huggingface_auto,model={server.model_directory}",
        "--data": "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
        "--output": f"kind=json,path={report}",
    }
    command = [sys.executable, "-m", "guidellm", "run", *chain(*options.items()), "--disable-console"]
    # It ends once its last request is counted and nothing came for this long. By default that is 0.1 s, in which, on a
    # busy machine, the last answer may be on its way between its two threads, and is then told by nobody.
    environment = {**os.environ, "GUIDELLM__MP_POLL_INTERVAL": "3"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals, requests = benchmark["metrics"]["request_totals"], benchmark["requests"]
    others = {kind: str(requests[kind])[:3000] for kind in ("errored", "incomplete")}
    assert (totals["successful"], totals["errored"]) == (3, 0), f"{others}\n{ended.stderr[-3000:]}"
