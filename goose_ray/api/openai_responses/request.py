"""Wire model of `POST /v1/responses`: what it accepts and the chat request that it means.

Nothing is stored, so that a response can be gone on from only by sending its items back.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from goose_ray.api.chat import ChatCompletionRequest, ChatMessage
from goose_ray.api.openai_responses.items import InputItem, as_messages
from goose_ray.api.sampling_fields import GooseOptions, LogprobCount, Seed
from goose_ray.api.structured_fields import JsonSchemaFormat, ResponseFormat, Schema
from goose_ray.api.tools.wire import MAX_TOOLS, FunctionDefinition, FunctionName, NamedFunction, Tool
from goose_ray.api.validation import WireModel, only_neutral
from goose_ray.errors import InvalidRequestError

__all__ = ["ResponsesRequest", "in_the_words_of_responses"]

_MAX_ITEMS = 16_384
_LOGPROBS = "message.output_text.logprobs"
# OpenAI's. But for the first they ask for parts of items that no answer here has.
Include = Literal[
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]


class TextFormat(WireModel):
    """As chat completions' `response_format`, one level flatter."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(min_length=1)] | None = None
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def for_chat(self) -> ResponseFormat:
        if self.type != "json_schema":
            return ResponseFormat(type=self.type)
        if self.name is None:
            raise InvalidRequestError("text.format of type json_schema needs a name", "text.format.name")
        of_schema = JsonSchemaFormat.model_construct(
            name=self.name, description=self.description, schema_=self.schema_, strict=self.strict
        )
        return ResponseFormat(type="json_schema", json_schema=of_schema)


class TextOptions(WireModel):
    format: TextFormat | None = None
    verbosity: Annotated[str | None, only_neutral("medium")] = None


class FunctionTool(FunctionDefinition):
    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _is_a_function(cls, value: Any) -> Any:
        """Of another tool than a function it is not what it lacks that is wrong."""
        if isinstance(value, dict) and value.get("type", "function") != "function":
            raise PydanticCustomError("tool_type", "Tools should be of type function", {"at": "type"})
        return value

    def for_chat(self) -> Tool:
        function = FunctionDefinition(**self.model_dump(exclude={"type"}, exclude_unset=True))
        return Tool(type="function", function=function)


class NamedTool(WireModel):
    type: Literal["function"]
    name: str


class ResponseStreamOptions(WireModel):
    include_obfuscation: bool | None = None


def _or_text(schema: dict[str, Any]) -> None:
    items = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string"}, items]


class ResponsesRequest(WireModel):
    """Null means absent."""

    model: str
    # a text is one message
    input: Annotated[
        list[InputItem],
        Field(fail_fast=True, min_length=1, max_length=_MAX_ITEMS, json_schema_extra=_or_text),
    ]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = False
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Include], Field(fail_fast=True)] | None = None
    top_logprobs: LogprobCount | None = None

    # vLLM's, and ours
    seed: Seed | None = None
    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: int | None = None
    goose: GooseOptions | None = None

    # accepted: nothing in the answer depends on them
    metadata: dict[str, Any] | None = None
    user: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    # refused unless neutral
    previous_response_id: str | None = None
    conversation: Annotated[Any, only_neutral()] = None
    prompt: Annotated[Any, only_neutral()] = None
    background: Annotated[bool | None, only_neutral(False)] = None
    reasoning: Annotated[dict[str, Any] | None, only_neutral({})] = None
    truncation: Annotated[str | None, only_neutral("disabled")] = None
    max_tool_calls: Annotated[int | None, only_neutral()] = None
    # guidellm sends null
    stop: Annotated[Any, only_neutral()] = None

    @field_validator("input", mode="before")
    @classmethod
    def _text_or_items(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if not isinstance(value, list):
            raise PydanticCustomError("input_type", "Input should be a string or a list of items")
        return value

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _known_choice(cls, value: Any) -> Any:
        named = isinstance(value, dict) and value.keys() == {"type", "name"} and value["type"] == "function"
        if value in (None, "none", "auto", "required") or (named and isinstance(value["name"], str)):
            return value
        says = 'Input should be "none", "auto", "required" or {"type": "function", "name": ...}'
        raise PydanticCustomError("tool_choice", "{says}", {"says": says})

    @property
    def with_logprobs(self) -> bool:
        return self.top_logprobs is not None or _LOGPROBS in (self.include or ())

    def for_chat(self) -> ChatCompletionRequest:
        """The chat request that it means. Raises InvalidRequestError naming the field of this one."""
        if self.previous_response_id is not None:
            raise InvalidRequestError(
                "previous_response_id: this server keeps no responses; send the items of the conversation as input",
                "previous_response_id",
                "unsupported_parameter",
            )
        if not as_messages(self.input):
            raise InvalidRequestError("input: there is nothing to answer; add a message", "input")
        chosen = self.tool_choice
        if isinstance(chosen, NamedTool):
            function = FunctionName(name=chosen.name)
            choice: Any = NamedFunction(type="function", function=function)
        else:
            choice = chosen
        shape = self.text.format if self.text is not None else None
        # Each part has been checked already, here or by its own model.
        return ChatCompletionRequest.model_construct(
            model=self.model,
            messages=[message for message, _ in self._messages()],
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            stream=self.stream,
            response_format=None if shape is None else shape.for_chat(),
            tools=None if self.tools is None else [tool.for_chat() for tool in self.tools],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            logprobs=self.with_logprobs,
            top_logprobs=self.top_logprobs,
            chat_template_kwargs=self.chat_template_kwargs,
            cache_salt=self.cache_salt,
            priority=self.priority,
            goose=self.goose,
        )

    def item_of_message(self, index: int) -> int | None:
        """Which item of the input message `index` of the chat request began with; None: none, but the instructions."""
        messages = self._messages()
        return messages[index][1] if 0 <= index < len(messages) and messages[index][1] >= 0 else None

    def _messages(self) -> list[tuple[ChatMessage, int]]:
        instructions = (
            [] if self.instructions is None else [(ChatMessage(role="system", content=self.instructions), -1)]
        )
        return [*instructions, *as_messages(self.input)]


_NAMES = (
    (r"max_completion_tokens", "max_output_tokens"),
    (r"response_format\.json_schema\.", "text.format."),
    (r"response_format", "text.format"),
    (r"(tools\[\d+\])\.function\b", r"\1"),
    (r"tool_choice\.function\.", "tool_choice."),
)


def in_the_words_of_responses(error: InvalidRequestError, wire: ResponsesRequest) -> InvalidRequestError:
    """What was said of the chat request, said of the one that the client sent."""

    def item(match: re.Match[str]) -> str:
        index = wire.item_of_message(int(match[1]))
        return "instructions" if index is None else f"input[{index}]"

    def translated(text: str) -> str:
        text = re.sub(r"messages\[(\d+)\](?:\.tool_calls\[\d+\]\.function|\.tool_calls\[\d+\])?", item, text)
        for pattern, name in _NAMES:
            text = re.sub(pattern, name, text)
        return text

    param = "input" if error.param == "messages" else error.param and translated(error.param)
    message = translated(error.message)
    if error.param == "messages":
        message = message.replace("messages", "input")
    return InvalidRequestError(message, param, error.code, error.status)
