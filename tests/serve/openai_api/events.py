"""Reading a stream of server-sent events."""

import json
from collections.abc import Iterator
from typing import Any

from serve.helpers import MODEL, Server

__all__ = ["events_of", "stream"]


def events_of(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if line and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def stream(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    with server.http.stream("POST", path, json={"model": MODEL, **body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return list(events_of(response.iter_lines()))
