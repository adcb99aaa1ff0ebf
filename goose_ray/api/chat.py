"""Wire model of `POST /v1/chat/completions`: what it accepts and the call it becomes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from goose_ray.api.calls import ChatPrompt, GenerateCall
from goose_ray.api.sampling_fields import LogprobCount, SamplingFields
from goose_ray.api.tools.choice import MAX_CALLS, ToolChoice, ToolChoiceKind
from goose_ray.api.tools.wire import MAX_TOOLS, CallOfMessage, NamedFunction, Tool, check_tool_choice, tool_choice_of
from goose_ray.api.validation import WireModel, only_neutral
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError

__all__ = ["ChatCompletionRequest", "ChatMessage", "Messages", "chat_prompt"]

# "all that the context holds"; the replica, which knows the context, cuts it
_NO_LIMIT = 2**31 - 1
# More turns than any context holds.
_MAX_MESSAGES = 16_384


_TEXT_PART: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}],
    "default": None,
}
_GIVEN: dict[str, Any] = {"type": ["string", "array"]}
_NO_CALLS: dict[str, Any] = {"type": ["array", "null"], "maxItems": 0}
# what the assistant alone does
_NO_REASONING: dict[str, Any] = {"reasoning": {"type": "null"}, "reasoning_content": {"type": "null"}}
# What `_has_what_its_role_needs` checks.
_BY_ROLE: dict[str, Any] = {
    "anyOf": [
        {
            "properties": {
                "role": {"enum": ["system", "developer", "user"]},
                "content": _GIVEN,
                "tool_calls": _NO_CALLS,
                "tool_call_id": {"type": "null"},
                **_NO_REASONING,
            },
            "required": ["content"],
        },
        {
            "properties": {"role": {"const": "assistant"}, "tool_call_id": {"type": "null"}},
            "anyOf": [
                {"properties": {"content": _GIVEN}, "required": ["content"]},
                {"properties": {"tool_calls": {"type": "array", "minItems": 1}}, "required": ["tool_calls"]},
                {"properties": {"reasoning": {"type": "string"}}, "required": ["reasoning"]},
                {"properties": {"reasoning_content": {"type": "string"}}, "required": ["reasoning_content"]},
            ],
        },
        {
            "properties": {
                "role": {"const": "tool"},
                "content": _GIVEN,
                "tool_calls": _NO_CALLS,
                "tool_call_id": {"type": "string"},
                **_NO_REASONING,
            },
            "required": ["content", "tool_call_id"],
        },
    ]
}


class ChatMessage(WireModel):
    """One turn. Content given as a list of text parts is joined."""

    model_config = ConfigDict(json_schema_extra=_BY_ROLE)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    # null beside tool calls
    content: Annotated[str | None, WithJsonSchema(_CONTENT)] = None
    name: str | None = None
    # of the assistant
    tool_calls: Annotated[list[CallOfMessage], Field(fail_fast=True, max_length=MAX_CALLS)] | None = None
    # of the assistant: what it thought, by vLLM's name of it and by DeepSeek's
    reasoning: str | None = None
    reasoning_content: str | None = None
    # of a tool: the call that this is the result of
    tool_call_id: str | None = None

    # what clients echo back from our own replies
    refusal: Annotated[str | None, only_neutral()] = None
    function_call: Annotated[dict[str, Any] | None, only_neutral()] = None
    audio: Annotated[dict[str, Any] | None, only_neutral()] = None
    annotations: Annotated[list[Any] | None, only_neutral([])] = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            if value is not None and not isinstance(value, str):
                raise PydanticCustomError("content", "Input should be a string or a list of text parts")
            return value
        texts: list[str] = []
        for part in value:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise PydanticCustomError("content_part", 'Content parts should be {"type": "text", "text": ...}')
            texts.append(part["text"])
        return "".join(texts)

    @model_validator(mode="after")
    def _has_what_its_role_needs(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("tool_calls", "Only the assistant calls tools", {"at": "tool_calls"})
        if self.thought is not None and self.role != "assistant":
            at = "reasoning_content" if self.reasoning is None else "reasoning"
            raise PydanticCustomError("reasoning", "Only the assistant's thinking is told", {"at": at})
        if self.content is None and not self.tool_calls and self.thought is None:
            raise PydanticCustomError("content", "Input should be a string or a list of text parts", {"at": "content"})
        if (self.role == "tool") is not (self.tool_call_id is not None):
            says = "A message of role tool, and no other, should name the call that it answers"
            raise PydanticCustomError("tool_call_id", "{says}", {"says": says, "at": "tool_call_id"})
        return self

    @property
    def thought(self) -> str | None:
        return self.reasoning_content if self.reasoning is None else self.reasoning

    def for_template(self, param: str, called: Mapping[str, str]) -> dict[str, Any]:
        """`developer` is OpenAI's newer name of `system`; chat templates know the older one. `called` are the names of
        functions by the ids of their calls.

        Raises InvalidRequestError naming the field below `param`, where this message stands.
        """
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content or "",
        }
        if self.thought is not None:
            # templates know one or the other
            message["reasoning"] = message["reasoning_content"] = self.thought
        if self.tool_calls:
            message["tool_calls"] = [
                call.for_template(f"{param}.tool_calls[{index}]") for index, call in enumerate(self.tool_calls)
            ]
        if self.role == "tool":
            message["tool_call_id"] = self.tool_call_id
            # Some templates insist on it, and clients leave it out, as OpenAI does.
            name = self.name or called.get(self.tool_call_id or "")
            message.update({"name": name} if name else {})
        return message


Messages = Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=_MAX_MESSAGES)]


def chat_prompt(
    messages: Sequence[ChatMessage],
    tools: Sequence[Tool],
    choice: ToolChoiceKind,
    template_options: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """Raises InvalidRequestError naming the field."""
    called = {call.id: call.function.name for message in messages for call in message.tool_calls or ()}
    return ChatPrompt(
        tuple(message.for_template(f"messages[{index}]", called) for index, message in enumerate(messages)),
        tuple(tool.for_template() for tool in tools),
        choice,
        template_options or {},
    )


class ChatCompletionRequest(SamplingFields):
    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None

    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None

    # vLLM's: variables of the model's own template, such as enable_thinking
    chat_template_kwargs: dict[str, Any] | None = None
    # vLLM's; false: what the model thinks is left out of the answer
    include_reasoning: bool | None = None

    # accepted: a hint for speed
    prediction: dict[str, Any] | None = None

    # refused unless neutral
    functions: Annotated[list[Any] | None, only_neutral([])] = None
    function_call: Annotated[Any, only_neutral("none", "auto")] = None
    modalities: Annotated[list[Any] | None, only_neutral(["text"])] = None
    audio: Annotated[dict[str, Any] | None, only_neutral()] = None
    reasoning_effort: Annotated[str | None, only_neutral()] = None
    verbosity: Annotated[str | None, only_neutral()] = None
    web_search_options: Annotated[dict[str, Any] | None, only_neutral()] = None
    # vLLM's
    echo: Annotated[bool | None, only_neutral(False)] = None
    add_generation_prompt: Annotated[bool | None, only_neutral(True)] = None
    continue_final_message: Annotated[bool | None, only_neutral(False)] = None
    add_special_tokens: Annotated[bool | None, only_neutral(False)] = None
    documents: Annotated[list[Any] | None, only_neutral([])] = None
    chat_template: Annotated[str | None, only_neutral()] = None
    return_prompt_text: Annotated[bool | None, only_neutral(False)] = None
    media_io_kwargs: Annotated[dict[str, Any] | None, only_neutral({})] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, only_neutral({})] = None

    _tool_choice = field_validator("tool_choice", mode="before")(check_tool_choice)

    @property
    def asked_of_tools(self) -> ToolChoice | None:
        """None if there are none. Raises InvalidRequestError naming the field that does not fit the others."""
        return tool_choice_of(self.tools, self.tool_choice, parallel=self.parallel_tool_calls is not False)

    def to_calls(self, request_id: str) -> list[GenerateCall]:
        """One call a choice. Raises InvalidRequestError naming the field that is out of range."""
        return self.choices_of(self._unseeded_call(request_id))

    def to_call(self, request_id: str) -> GenerateCall:
        """The call of the first choice. Raises InvalidRequestError naming the field that is out of range."""
        return self.to_calls(request_id)[0]

    def _unseeded_call(self, request_id: str) -> GenerateCall:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidRequestError(
                "max_tokens and max_completion_tokens say different things; send one of them", "max_completion_tokens"
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        choice = self.asked_of_tools
        limit = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return GenerateCall(
            request_id=request_id,
            prompt=chat_prompt(
                self.messages,
                self.tools or (),
                "none" if choice is None else choice.kind,
                self.chat_template_kwargs,
            ),
            sampling=_shaped(self._sampling_params(limit), choice),
            clip_max_tokens=limit is None,
            max_tokens_param="max_completion_tokens" if self.max_tokens is None else "max_tokens",
            policy=self.policy,
            budget=self.budget,
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            return_prompt_token_ids=bool(self.return_token_ids),
            tells_reasoning=self.include_reasoning is not False,
        )

    def _sampling_params(self, limit: int | None) -> SamplingParams:
        try:
            return self.sampling_params(
                max_tokens=_NO_LIMIT if limit is None else limit,
                logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            )
        except InvalidRequestError as error:
            if error.param == "max_tokens" and self.max_tokens is None:
                message = error.message.replace("max_tokens", "max_completion_tokens")
                raise InvalidRequestError(message, "max_completion_tokens", error.code, error.status) from None
            raise


def _shaped(sampling: SamplingParams, choice: ToolChoice | None) -> SamplingParams:
    """With the shape of the calls that `choice` forces. Raises InvalidRequestError if another shape is asked for."""
    if choice is None or choice.kind == "none":
        return sampling
    if sampling.structured is not None:
        param = sampling.structured.param
        raise InvalidRequestError(
            f"{param} leaves the answer no room for tool calls: send one of them, or tool_choice none", param
        )
    return replace(sampling, structured=choice.structured)
