"""Wire models of `POST /tokenize` and `/detokenize`, as vLLM has them."""

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from goose_ray.api.calls import ChatPrompt, DecodeCall, EncodeCall, Encoded
from goose_ray.api.chat import Messages, chat_prompt
from goose_ray.api.reply import Reply
from goose_ray.api.tools.choice import ToolChoiceKind
from goose_ray.api.tools.wire import MAX_TOOLS, Tool
from goose_ray.api.validation import WireModel, only_neutral

__all__ = ["DetokenizeReply", "DetokenizeRequest", "TokenizeReply", "TokenizeRequest"]

# What `_one_of_two` checks.
_ONE_OF_TWO: dict[str, Any] = {
    "anyOf": [
        {"properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}, "required": ["prompt"]},
        {
            "properties": {
                "messages": {"type": "array"},
                "prompt": {"type": "null"},
                "add_special_tokens": {"enum": [False, None]},
            },
            "required": ["messages"],
        },
    ]
}


class TokenizeRequest(WireModel):
    """Either `prompt`, a text, or `messages`, a conversation as chat completions take it."""

    model_config = ConfigDict(json_schema_extra=_ONE_OF_TWO)

    model: str | None = None
    prompt: str | None = None
    # Of a text: with those that the model expects around one, as in completions, unless this is false.
    add_special_tokens: bool | None = None
    messages: Messages | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = False

    # refused unless neutral
    add_generation_prompt: Annotated[bool | None, only_neutral(True)] = None
    continue_final_message: Annotated[bool | None, only_neutral(False)] = None
    chat_template: Annotated[str | None, only_neutral()] = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "There should be either a prompt or messages", {"at": "prompt"})
        if self.messages is not None and self.add_special_tokens:
            says = "It should be false, as chat templates write their special tokens themselves"
            raise PydanticCustomError("special", "{says}", {"says": says, "at": "add_special_tokens"})
        return self

    def to_call(self) -> EncodeCall:
        """Raises InvalidRequestError naming the field."""
        prompt: ChatPrompt | str = self.prompt or ""
        if self.messages is not None:
            choice: ToolChoiceKind = "auto" if self.tools else "none"
            prompt = chat_prompt(self.messages, self.tools or (), choice, self.chat_template_kwargs)
        return EncodeCall(
            prompt=prompt,
            add_special_tokens=self.add_special_tokens is not False,
            with_strings=bool(self.return_token_strs),
        )


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]

    def to_call(self) -> DecodeCall:
        return DecodeCall(tuple(self.tokens))


class TokenizeReply(Reply):
    """`token_strs` are tokens as they stand in the vocabulary's text, parts of characters replaced; null if not asked
    for.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None

    @classmethod
    def of(cls, encoded: Encoded) -> "TokenizeReply":
        return cls(
            count=len(encoded.token_ids),
            max_model_len=encoded.max_model_len,
            tokens=list(encoded.token_ids),
            token_strs=None if encoded.strings is None else list(encoded.strings),
        )


class DetokenizeReply(Reply):
    prompt: str
