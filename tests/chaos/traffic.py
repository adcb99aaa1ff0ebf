"""Requests of many kinds whose answers are known, and what is wrong with the answers that came.

Every request is seeded or greedy, so its answer is the same whenever and wherever it is computed. Knows nothing about
what happens to the server meanwhile.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

__all__ = ["ASKS", "Answer", "Ask", "answer_to", "error_in"]

_LONG, _SHORT = 120, 24


@dataclass(frozen=True)
class Ask:
    """`path` and `body` without model and stream."""

    name: str
    path: str
    body: dict[str, Any]
    stream: bool = True


def _completion(name: str, prompt: str, *, stream: bool = True, **options: Any) -> Ask:
    body = {"prompt": prompt, "max_tokens": _LONG, "ignore_eos": True, "seed": 1, **options}
    return Ask(name, "/v1/completions", body, stream)


def _chat(name: str, text: str, *, stream: bool = True, **options: Any) -> Ask:
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": _LONG, "ignore_eos": True, "seed": 1, **options}
    return Ask(name, "/v1/chat/completions", body, stream)


_PLAIN = {"policy": "autoregressive"}
ASKS: tuple[Ask, ...] = (
    _completion("greedy", "Once upon a time", temperature=0),
    _completion("seeded", "In the beginning", temperature=0.8, seed=7),
    _completion("plain decoding", "The quick brown fox", temperature=0.8, goose=_PLAIN),
    _completion("two choices", "Seven days", temperature=0.9, n=2, max_tokens=80),
    _completion("penalties", "A rose is a rose", temperature=0.7, presence_penalty=0.5, frequency_penalty=0.5),
    _completion("grammar", "abc", temperature=0.8, structured_outputs={"regex": "([a-z]{1,8} ){20}"}),
    _completion("chain", "one fish, two fish, one fish,", temperature=0, goose={"policy": "chain"}),
    _completion("whole", "for i in range(3):", stream=False, temperature=0.6, top_p=0.9),
    _completion("short", "x = 1", stream=False, temperature=0, max_tokens=_SHORT),
    _chat("chat", "Tell me a story.", temperature=0.7, top_p=0.9),
    _chat("chat, paper's policy", "Count from one to ten.", temperature=0, goose={"policy": "goose"}),
    _chat("chat, whole", "Who are you?", stream=False, temperature=0.5, max_tokens=_SHORT),
)


@dataclass
class Answer:
    """What a client got. `end` is "whole", "refused" (a status and no text) or "cut" (less than a whole answer)."""

    end: Literal["whole", "refused", "cut"] = "cut"
    status: int | None = None
    reason: str = ""
    retry_after: bool = False
    texts: dict[int, str] = field(default_factory=dict)
    finish: dict[int, list[str]] = field(default_factory=dict)
    num_done: int = 0
    # of `usage`
    num_tokens: int | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        return self.texts, self.finish, self.num_tokens


async def answer_to(http: httpx.AsyncClient, model: str, ask: Ask, begun: asyncio.Event | None = None) -> Answer:
    """Never raises for what a server or its end may do. `begun` is set with the first text, and at the end."""
    answer = Answer()
    body = {"model": model, **ask.body}
    if ask.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    begun = begun or asyncio.Event()
    try:
        async with http.stream("POST", ask.path, json=body) as response:
            answer.status, answer.retry_after = response.status_code, "retry-after" in response.headers
            if response.status_code != 200:
                answer.end, answer.reason = "refused", (await response.aread()).decode(errors="replace")[:300]
            elif ask.stream:
                async for line in response.aiter_lines():
                    _take_line(answer, line)
                    begun.set()
                answer.end = "whole" if answer.num_done else "cut"
            else:
                _take_event(answer, json.loads(await response.aread()))
                answer.end = "whole"
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        answer.reason = answer.reason or repr(error)
    finally:
        begun.set()
    return answer


def _take_line(answer: Answer, line: str) -> None:
    if not line.startswith("data: "):
        return
    data = line.removeprefix("data: ")
    if data == "[DONE]":
        answer.num_done += 1
        return
    if answer.num_done:
        answer.reason = "events after [DONE]"
    _take_event(answer, json.loads(data))


def _take_event(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        answer.reason = json.dumps(event["error"])
        return
    for choice in event["choices"]:
        said = choice.get("message") or choice.get("delta") or choice
        text = said.get("text") or said.get("content") or ""
        answer.texts[choice["index"]] = answer.texts.get(choice["index"], "") + text
        if choice["finish_reason"] is not None:
            answer.finish.setdefault(choice["index"], []).append(choice["finish_reason"])
    if event.get("usage"):
        answer.num_tokens = event["usage"]["completion_tokens"]


def error_in(answer: Answer, reference: Answer, *, interrupted: bool) -> str | None:
    """What must not be, or None. Where it may be `interrupted`, an answer may be refused with any 5xx or cut off; what
    has come of it must still be the beginning of the right one.
    """
    if answer.end == "whole":
        if answer.reason:
            return answer.reason
        if answer.content != reference.content or answer.num_done != reference.num_done:
            return f"another answer: {answer.content}, not {reference.content}"
        return None
    if any(reference.texts.get(choice, "")[: len(text)] != text for choice, text in answer.texts.items()):
        return f"a wrong beginning: {answer.texts}, not of {reference.texts}"
    if any(count > 1 for ends in answer.finish.values() for count in Counter(ends).values()):
        return f"ended twice: {answer.finish}"
    if interrupted:
        return None if answer.status is None or answer.status == 200 or answer.status >= 500 else _told(answer)
    return _told(answer)


def _told(answer: Answer) -> str:
    return f"{answer.end}, status {answer.status}: {answer.reason}"
