"""Answers with tool calls, read as the HTTP side reads them: by bursts of any size."""

from collections.abc import Sequence
from dataclasses import dataclass

from goose_ray.api.answer import Answer
from goose_ray.api.calls import AnswerEnd, Delta, PromptInfo
from goose_ray.api.tools.choice import ToolChoice
from goose_ray.api.tools.reader import CallReader
from goose_ray.api.tools.replies import calls_of
from goose_ray.engine.request import FinishReason

__all__ = ["FUNCTIONS", "Reading", "auto", "read"]

FUNCTIONS = {name: {"name": name} for name in ("f", "get_weather")}


@dataclass(frozen=True, slots=True)
class Reading:
    content: str
    # (name, arguments)
    calls: tuple[tuple[str, str], ...]
    finish_reason: AnswerEnd | None


def auto(*, parallel: bool = True) -> ToolChoice:
    return ToolChoice(kind="auto", functions=FUNCTIONS, parallel=parallel)


def read(
    bursts: Sequence[str],
    tool_format: str | None,
    *,
    choice: ToolChoice | None = None,
    finish_reason: FinishReason = "stop",
) -> Reading:
    """What the bursts of one answer come to. Checks that every call begins once, with its id and name, in order."""
    reader = CallReader(choice or auto())
    answer = Answer()
    begun: list[int] = []
    for number, text in enumerate([*bursts, ""]):
        delta = Delta(
            text=text,
            token_ids=(),
            prompt=None if number else PromptInfo(1, tool_format=tool_format),
            finish_reason=finish_reason if number == len(bursts) else None,
        )
        seen = reader.read(delta)
        assert [call.index for call in seen.tool_calls] == sorted({call.index for call in seen.tool_calls})
        for call in seen.tool_calls:
            if call.index not in begun:
                begun.append(call.index)
                assert call.id is not None
                assert call.id.startswith("call_")
                assert call.name
            else:
                assert call.index == begun[-1], "a call that has ended goes on"
                assert (call.id, call.name) == (None, None)
        answer.add(seen)
    calls = calls_of(answer.tool_calls)
    assert begun == list(range(len(calls)))
    assert len({call.id for call in calls}) == len(calls)
    called = tuple((call.function.name, call.function.arguments) for call in calls)
    return Reading(answer.text, called, answer.finish_reason)
