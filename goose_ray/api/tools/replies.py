"""Tool calls as clients get them: whole, and as the parts of a stream."""

from collections.abc import Sequence
from typing import Literal

from goose_ray.api.calls import ToolCallDelta
from goose_ray.api.reply import Reply

__all__ = ["ToolCallChunk", "ToolCallReply", "calls_of"]


class _Function(Reply):
    name: str
    arguments: str


class ToolCallReply(Reply):
    id: str
    type: Literal["function"]
    function: _Function


class _FunctionPart(Reply):
    name: str = ""
    arguments: str


class ToolCallChunk(Reply):
    """The first of an `index` has id, type and name; arguments are to be joined."""

    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: _FunctionPart

    @classmethod
    def of(cls, delta: ToolCallDelta) -> "ToolCallChunk":
        if delta.id is None or delta.name is None:
            return cls(index=delta.index, function=_FunctionPart(arguments=delta.arguments))
        function = _FunctionPart(name=delta.name, arguments=delta.arguments)
        return cls(index=delta.index, id=delta.id, type="function", function=function)


def calls_of(deltas: Sequence[ToolCallDelta]) -> list[ToolCallReply]:
    """The calls that all deltas of an answer come to."""
    calls: list[ToolCallReply] = []
    for index in dict.fromkeys(delta.index for delta in deltas):
        parts = [delta for delta in deltas if delta.index == index]
        function = _Function(name=parts[0].name or "", arguments="".join(part.arguments for part in parts))
        calls.append(ToolCallReply(id=parts[0].id or "", type="function", function=function))
    return calls
