"""What a day of users sends, in random order: chats and completions, streamed or whole, left or refused, with grammars,
tools and long prompts, hardly any text twice. Knows nothing about what is measured meanwhile.
"""

import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import httpx

__all__ = ["MixedTraffic"]

_POLICIES = ("anisotropic", "anisotropic", "autoregressive", "chain", "goose", "suffix", "recycling", "balanced")
_EXPECTED = frozenset({200, 400, 404, 405, 413, 429})
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class MixedTraffic:
    """One client of several; `counts` says what it has sent, and how it was answered."""

    def __init__(self, http: httpx.AsyncClient, model: str, random: Random, *, longest_words: int) -> None:
        self._http, self._model, self._random = http, model, random
        self._longest_words = longest_words
        self.counts: Counter[str] = Counter()
        self._kinds = {
            "chat": (self._chat, 4),
            "completion": (self._completion, 4),
            "stream": (self._stream, 6),
            "left": (self._left, 3),
            "json": (self._json, 2),
            "tools": (self._tools, 2),
            "long prompt": (self._long_prompt, 1),
            "wrong": (self._wrong, 2),
            "looks": (self._look, 1),
        }

    async def send_one(self) -> None:
        """Raises AssertionError for a status that nobody should see."""
        names = list(self._kinds)
        name = self._random.choices(names, weights=[weight for _, weight in self._kinds.values()])[0]
        send, _ = self._kinds[name]
        self.counts[name] += 1
        status = await send()
        self.counts[f"status {status}"] += 1
        if status not in _EXPECTED:
            raise AssertionError(f"{name} was answered {status}")

    async def _chat(self, **more: Any) -> int:
        messages = [{"role": "user", "content": self._text(3, 60)}]
        return await self._post("/v1/chat/completions", {"messages": messages, **self._options(), **more})

    async def _completion(self) -> int:
        return await self._post("/v1/completions", {"prompt": self._text(1, 60), **self._options()})

    async def _stream(self) -> int:
        path, body = self._request()
        return await self._read(path, body, num_lines=None)

    async def _left(self) -> int:
        path, body = self._request()
        return await self._read(path, {**body, "max_tokens": 300}, num_lines=self._random.randint(0, 40))

    async def _json(self) -> int:
        """A schema of its own nearly every time."""
        names = [self._word() for _ in range(self._random.randint(1, 3))]
        schema = {
            "type": "object",
            "properties": {name: {"enum": [self._word(), self._word()]} for name in names},
            "required": names,
            "additionalProperties": False,
        }
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return await self._chat(response_format=wanted, max_tokens=60)

    async def _tools(self) -> int:
        parameters = {"type": "object", "properties": {self._word(): {"type": "integer"}}}
        function = {"name": self._word(), "description": self._text(3, 9), "parameters": parameters}
        choice = self._random.choice(["auto", "required"])
        return await self._chat(tools=[{"type": "function", "function": function}], tool_choice=choice, max_tokens=40)

    async def _long_prompt(self) -> int:
        prompt = self._text(self._longest_words // 2, self._longest_words)
        return await self._post("/v1/completions", {"prompt": prompt, **self._options(), "max_tokens": 8})

    async def _wrong(self) -> int:
        wrong: Sequence[tuple[str, Any]] = (
            ("/v1/completions", {"prompt": self._word(), "temperature": -1}),
            ("/v1/completions", {"prompt": self._word(), "model": self._word()}),
            ("/v1/completions", {"prompt": self._word(), self._word(): 1}),
            ("/v1/chat/completions", {"messages": [{"role": self._word(), "content": "x"}]}),
            ("/v1/completions", {"prompt": self._word(), "structured_outputs": {"regex": f"({self._word()}"}}),
            (f"/{self._word()}/{self._word()}", {}),
        )
        path, body = self._random.choice(wrong)
        return await self._post(path, body)

    async def _look(self) -> int:
        paths = ("/metrics", "/health", "/v1/models", "/v1/goose/acceptance", "/v1/goose/live", f"/v1/{self._word()}")
        return (await self._http.get(self._random.choice(paths))).status_code

    def _request(self) -> tuple[str, dict[str, Any]]:
        if self._random.random() < 0.5:
            return "/v1/completions", {"prompt": self._text(1, 60), **self._options()}
        messages = [{"role": "user", "content": self._text(3, 60)}]
        return "/v1/chat/completions", {"messages": messages, **self._options()}

    def _options(self) -> dict[str, Any]:
        random = self._random
        options: dict[str, Any] = {
            "max_tokens": random.randint(1, 80),
            "temperature": random.choice([0, 0.7, 1.0]),
            "goose": {"policy": random.choice(_POLICIES)},
        }
        for name, value, share in (
            ("ignore_eos", True, 0.5),
            ("n", 2, 0.1),
            ("stop", [self._word()], 0.2),
            ("user", self._word(), 0.3),
            ("cache_salt", self._word(), 0.1),
            ("presence_penalty", 0.5, 0.2),
            ("logit_bias", {str(random.randrange(1000)): 1.5}, 0.1),
            ("seed", random.randrange(2**31), 0.5),
        ):
            if random.random() < share:
                options[name] = value
        return options

    def _text(self, fewest: int, most: int) -> str:
        return " ".join(self._word() for _ in range(self._random.randint(fewest, most)))

    def _word(self) -> str:
        return "".join(self._random.choices(_LETTERS, k=self._random.randint(2, 8)))

    async def _post(self, path: str, body: dict[str, Any]) -> int:
        return (await self._http.post(path, json={"model": self._model, **body})).status_code

    async def _read(self, path: str, body: dict[str, Any], *, num_lines: int | None) -> int:
        """`num_lines` lines of a stream, or all of them."""
        is_done = False
        async with self._http.stream("POST", path, json={"model": self._model, "stream": True, **body}) as response:
            async for line in response.aiter_lines():
                if num_lines is not None and (num_lines := num_lines - 1) < 0:
                    return response.status_code
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                is_done |= line == "data: [DONE]"
        assert is_done or response.status_code != 200, "a stream without an end"
        return response.status_code
