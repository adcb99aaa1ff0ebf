"""What a tool parser finds in the text of an answer, in order. Knows neither formats nor answers."""

from dataclasses import dataclass

__all__ = ["ArgumentsPart", "CallStart", "ContentPart", "ToolEvent"]


@dataclass(frozen=True, slots=True)
class ContentPart:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; the call before it, if any, has ended."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """More of the last call's arguments, as the model wrote them: JSON text."""

    text: str


ToolEvent = ContentPart | CallStart | ArgumentsPart
