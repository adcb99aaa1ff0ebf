"""Wire models of what goes into a response: turns of a conversation, thinking, calls of functions and their results.

Knows chat messages, which all of it becomes, and no model.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from goose_ray.api.chat import ChatMessage
from goose_ray.api.tools.wire import CalledFunction, CallOfMessage
from goose_ray.api.validation import VARIANT, WireModel, only_neutral

__all__ = ["InputItem", "as_messages"]

# of texts, by who wrote them
_PARTS = ("input_text", "output_text")


_TEXT_PART: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"enum": list(_PARTS)}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_TEXTS: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}


def _joined(value: Any) -> Any:
    """The text of a list of parts."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") not in _PARTS or not isinstance(part.get("text"), str):
            raise PydanticCustomError(
                "content_part", 'Content parts should be {"type": "input_text" or "output_text", "text": ...}'
            )
        texts.append(part["text"])
    return "".join(texts)


class MessageItem(WireModel):
    """One turn. Content given as a list of text parts is joined."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, WithJsonSchema(_TEXTS)]

    # what clients echo back from our own replies
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    _joined = field_validator("content", mode="before")(_joined)


class ReasoningText(WireModel):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(WireModel):
    """What the model thought before the item that follows."""

    type: Literal["reasoning"]
    # servers that keep it to themselves give none
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None

    id: str | None = None
    status: str | None = None
    summary: Annotated[list[Any] | None, only_neutral([])] = None
    encrypted_content: Annotated[str | None, only_neutral()] = None


class FunctionCallItem(WireModel):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    # JSON text
    arguments: str

    id: str | None = None
    status: str | None = None


class FunctionOutputItem(WireModel):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str, WithJsonSchema(_TEXTS)]

    id: str | None = None
    status: str | None = None

    _joined = field_validator("output", mode="before")(_joined)


def _type_of(value: Any) -> str:
    """Messages may leave theirs out."""
    found = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return f"{VARIANT}{found}"


InputItem = Annotated[
    Annotated[MessageItem, Tag(f"{VARIANT}message")]
    | Annotated[ReasoningItem, Tag(f"{VARIANT}reasoning")]
    | Annotated[FunctionCallItem, Tag(f"{VARIANT}function_call")]
    | Annotated[FunctionOutputItem, Tag(f"{VARIANT}function_call_output")],
    Discriminator(
        _type_of,
        custom_error_type="item_type",
        custom_error_message="Items should be of type message, reasoning, function_call or function_call_output",
    ),
]


def as_messages(items: Sequence[InputItem]) -> list[tuple[ChatMessage, int]]:
    """Messages for a chat template, each with the index of the item that it begins with. Calls that follow the
    assistant's words, or one another, are one message with these; so is what follows its thinking.
    """
    messages: list[tuple[ChatMessage, int]] = []
    for index, item in enumerate(items):
        above = messages[-1][0] if messages and messages[-1][0].role == "assistant" else None
        joined: dict[str, Any] | None = None
        if isinstance(item, MessageItem):
            if item.role == "assistant" and above is not None and above.content is None and not above.tool_calls:
                joined = {"content": item.content}
            else:
                messages.append((ChatMessage(role=item.role, content=item.content), index))
        elif isinstance(item, ReasoningItem):
            if item.content:
                thought = "".join(part.text for part in item.content)
                messages.append((ChatMessage(role="assistant", reasoning=thought), index))
        elif isinstance(item, FunctionOutputItem):
            messages.append((ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id), index))
        else:
            call = CallOfMessage(id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments))
            if above is None:
                messages.append((ChatMessage(role="assistant", tool_calls=[call]), index))
            else:
                joined = {"tool_calls": [*(above.tool_calls or ()), call]}
        if joined is not None and above is not None:
            messages[-1] = (above.model_copy(update=joined), messages[-1][1])
    return messages
