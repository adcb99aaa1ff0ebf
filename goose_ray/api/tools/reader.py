"""Tool calls out of the text of an answer, delta by delta: what is streamed and what is put together is the same.

Knows deltas; knows neither HTTP nor where they come from.
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from goose_ray.api.calls import AnswerEnd, Delta, ToolCallDelta
from goose_ray.api.tools.choice import ToolChoice
from goose_ray.api.tools.events import CallStart, ContentPart, ToolEvent
from goose_ray.api.tools.formats import ToolParser
from goose_ray.errors import EngineDeadError

__all__ = ["CallReader", "with_tool_calls"]


class CallReader:
    """Of one answer. Without `parallel` calls behind the first are left out, as in vLLM."""

    def __init__(self, choice: ToolChoice) -> None:
        self._choice = choice
        self._parser: ToolParser | None = None
        self._num_calls = 0

    def read(self, delta: Delta) -> Delta:
        """The delta with its calls taken out of its text."""
        if self._parser is None:
            if delta.prompt is None:
                raise EngineDeadError("the replica answered without saying what the prompt came to")
            self._parser = self._choice.parser(delta.prompt.tool_format)
        events = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            events += self._parser.finish()
        parts = self._parts(events)
        return replace(
            delta,
            text="".join(part for part in parts if isinstance(part, str)),
            tool_calls=tuple(part for part in parts if not isinstance(part, str)),
            parts=parts,
            finish_reason=self._finish_reason(delta),
        )

    def _parts(self, events: list[ToolEvent]) -> tuple[str | ToolCallDelta, ...]:
        """Text as it comes, and one entry a call with all that these events say of it."""
        parts: list[str | _Entry] = []
        for event in events:
            if isinstance(event, ContentPart):
                if event.text:
                    parts.append(event.text)
            elif isinstance(event, CallStart):
                parts.append(_Entry(self._num_calls, f"call_{uuid.uuid4().hex[:24]}", event.name))
                self._num_calls += 1
            else:
                if not parts or isinstance(last := parts[-1], str):
                    parts.append(last := _Entry(self._num_calls - 1))
                last.arguments.append(event.text)
        return tuple(
            part if isinstance(part, str) else part.delta()
            for part in parts
            if isinstance(part, str) or self._choice.parallel or part.index == 0
        )

    def _finish_reason(self, delta: Delta) -> AnswerEnd | None:
        """OpenAI's: an answer that was forced to be one function's arguments ends with `stop`."""
        if delta.finish_reason == "stop" and self._num_calls and self._choice.kind != "named":
            return "tool_calls"
        return delta.finish_reason


@dataclass(slots=True)
class _Entry:
    index: int
    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)

    def delta(self) -> ToolCallDelta:
        return ToolCallDelta(self.index, self.id, self.name, "".join(self.arguments))


async def with_tool_calls(
    deltas: AsyncGenerator[tuple[int, Delta]], choice: ToolChoice
) -> AsyncGenerator[tuple[int, Delta]]:
    """(index of the answer, delta), as they come, with the calls taken out of the text. Closing it closes `deltas`."""
    readers: dict[int, CallReader] = {}
    async with aclosing(deltas):
        async for index, delta in deltas:
            reader = readers.setdefault(index, CallReader(choice))
            yield index, reader.read(delta)
