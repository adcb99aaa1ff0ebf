"""What comes out of a response: its items, as they grow. One computation gives the whole answer and every stream of it.

Knows deltas, and of events only what they say of items; knows no response around them.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from goose_ray.api.calls import Delta, TokenScores, ToolCallDelta
from goose_ray.api.logprob_replies import ChatLogprobs, ChatToken
from goose_ray.api.openai_responses.text_scores import TextScores
from goose_ray.api.reply import Reply

__all__ = ["FunctionCall", "Message", "Output", "OutputItem", "OutputText", "Reasoning"]

Status = Literal["in_progress", "completed", "incomplete"]
# the type of an event, and its fields
Event = tuple[str, dict[str, Any]]


class OutputText(Reply):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken] = Field(default_factory=list)


class Message(Reply):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(Reply):
    type: Literal["reasoning_text"]
    text: str


class Reasoning(Reply):
    """What the model thought; nobody sums it up."""

    type: Literal["reasoning"]
    id: str
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCall(Reply):
    type: Literal["function_call"]
    id: str
    status: Status
    call_id: str
    name: str
    # JSON text, as far as the model wrote it
    arguments: str


OutputItem = Reasoning | Message | FunctionCall


@dataclass(slots=True)
class _OpenReasoning:
    id: str = field(default_factory=lambda: f"rs_{uuid.uuid4().hex}")
    texts: list[str] = field(default_factory=list)

    def text(self) -> ReasoningText:
        return ReasoningText(type="reasoning_text", text="".join(self.texts))

    def item(self, status: Status) -> Reasoning:
        content = [] if status == "in_progress" else [self.text()]
        return Reasoning(type="reasoning", id=self.id, status=status, summary=[], content=content)


@dataclass(slots=True)
class _OpenMessage:
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    texts: list[str] = field(default_factory=list)
    logprobs: list[ChatToken] = field(default_factory=list)

    def text(self) -> OutputText:
        return OutputText(type="output_text", text="".join(self.texts), annotations=[], logprobs=self.logprobs)

    def item(self, status: Status) -> Message:
        content = [] if status == "in_progress" else [self.text()]
        return Message(type="message", id=self.id, status=status, role="assistant", content=content)


@dataclass(slots=True)
class _OpenCall:
    # the index of the tool call
    index: int
    call_id: str
    name: str
    id: str = field(default_factory=lambda: f"fc_{uuid.uuid4().hex}")
    arguments: list[str] = field(default_factory=list)

    def item(self, status: Status) -> FunctionCall:
        return FunctionCall(
            type="function_call",
            id=self.id,
            status=status,
            call_id=self.call_id,
            name=self.name,
            arguments="" if status == "in_progress" else "".join(self.arguments),
        )


class Output:
    """Of one answer. At most one item is open: the last one. `may_call`: functions may be called in it."""

    def __init__(self, *, may_call: bool) -> None:
        self.items: list[OutputItem] = []
        self._open: _OpenReasoning | _OpenMessage | _OpenCall | None = None
        self._scores = TextScores(may_call=may_call)

    def add(self, delta: Delta) -> list[Event]:
        """What the delta adds, as events in order. The last delta closes what is open."""
        events: list[Event] = []
        if delta.reasoning:
            events += self._add_reasoning(delta.reasoning)
        scores = self._scores.of(delta)
        parts = delta.parts or ((delta.text,) if delta.text else ())
        if scores and not (parts and isinstance(parts[0], str)):
            parts = ("", *parts)
        for part in parts:
            if isinstance(part, str):
                events += self._add_text(part, scores)
                scores = ()
            else:
                events += self._add_call(part)
        if delta.finish_reason is not None:
            if self._open is None and not self.items:
                events += self._opened(_OpenMessage())
            events += self.close("incomplete" if delta.finish_reason == "length" else "completed")
        return events

    def close(self, status: Status) -> list[Event]:
        """The end of the item that is open, if one is."""
        opened, index = self._open, len(self.items)
        if opened is None:
            return []
        at: dict[str, Any] = {"item_id": opened.id, "output_index": index}
        events: list[Event] = []
        if isinstance(opened, _OpenMessage):
            part = opened.text()
            at["content_index"] = 0
            done = {**at, "text": part.text, "logprobs": part.logprobs}
            events += [("response.output_text.done", done), ("response.content_part.done", {**at, "part": part})]
        elif isinstance(opened, _OpenReasoning):
            thought = opened.text()
            at["content_index"] = 0
            events.append(("response.reasoning_text.done", {**at, "text": thought.text}))
            events.append(("response.content_part.done", {**at, "part": thought}))
        else:
            done = {**at, "name": opened.name, "arguments": "".join(opened.arguments)}
            events.append(("response.function_call_arguments.done", done))
        self.items.append(opened.item(status))
        self._open = None
        return [*events, ("response.output_item.done", {"output_index": index, "item": self.items[-1]})]

    def _add_reasoning(self, text: str) -> Iterable[Event]:
        opened, events = self._open, []
        if not isinstance(opened, _OpenReasoning):
            opened = _OpenReasoning()
            events = [*self.close("completed"), *self._opened(opened)]
        opened.texts.append(text)
        at = {"item_id": opened.id, "output_index": len(self.items), "content_index": 0}
        return [*events, ("response.reasoning_text.delta", {**at, "delta": text})]

    def _add_text(self, text: str, scores: Sequence[TokenScores]) -> Iterable[Event]:
        opened, events = self._open, []
        if not isinstance(opened, _OpenMessage):
            opened = _OpenMessage()
            events = [*self.close("completed"), *self._opened(opened)]
        logprobs = ChatLogprobs.of(scores).content
        opened.texts.append(text)
        opened.logprobs += logprobs
        at = {"item_id": opened.id, "output_index": len(self.items), "content_index": 0}
        return [*events, ("response.output_text.delta", {**at, "delta": text, "logprobs": logprobs})]

    def _add_call(self, call: ToolCallDelta) -> Iterable[Event]:
        opened, events = self._open, []
        if not isinstance(opened, _OpenCall) or opened.index != call.index:
            opened = _OpenCall(call.index, call.id or "", call.name or "")
            events = [*self.close("completed"), *self._opened(opened)]
        if not call.arguments:
            return events
        opened.arguments.append(call.arguments)
        at = {"item_id": opened.id, "output_index": len(self.items)}
        return [*events, ("response.function_call_arguments.delta", {**at, "delta": call.arguments})]

    def _opened(self, item: _OpenReasoning | _OpenMessage | _OpenCall) -> Sequence[Event]:
        self._open = item
        index = len(self.items)
        events: list[Event] = [
            ("response.output_item.added", {"output_index": index, "item": item.item("in_progress")})
        ]
        if not isinstance(item, _OpenCall):
            at = {"item_id": item.id, "output_index": index, "content_index": 0, "part": item.text()}
            events.append(("response.content_part.added", at))
        return events
