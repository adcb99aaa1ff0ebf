"""The server that clients are tried against, as plain HTTP sees it."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MODEL", "TIMEOUT_S", "Server"]

MODEL = "smollm2-135m-instruct"
# The machine may be busy with other things: whoever hangs is found out all the same.
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Server:
    """`url` without /v1; `model_directory` is where its model and tokenizer lie."""

    url: str
    model_directory: Path

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """By plain HTTP, to compare what clients make of it."""
        data = json.dumps({"model": MODEL, "temperature": 0, **body}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            parsed: dict[str, Any] = json.load(answer)
        return parsed

    def chat(self, text: str, **options: Any) -> str:
        """The greedy answer."""
        answer = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **options})
        content: str = answer["choices"][0]["message"]["content"]
        return content
