"""Wire model of `POST /v1/chat/completions`: what it accepts and the call it becomes."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from goose_ray.api.calls import ChatPrompt, GenerateCall
from goose_ray.api.sampling_fields import LogprobCount, SamplingFields
from goose_ray.api.validation import WireModel, only_neutral
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError

__all__ = ["ChatCompletionRequest", "ChatMessage"]

# "all that the context holds"; the replica, which knows the context, cuts it
_NO_LIMIT = 2**31 - 1
# More turns than any context holds.
_MAX_MESSAGES = 16_384


class ChatMessage(WireModel):
    """One turn. Content given as a list of text parts is joined."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str | None = None

    # what clients echo back from our own replies
    refusal: Annotated[str | None, only_neutral()] = None
    tool_calls: Annotated[list[Any] | None, only_neutral([])] = None
    function_call: Annotated[dict[str, Any] | None, only_neutral()] = None
    audio: Annotated[dict[str, Any] | None, only_neutral()] = None
    annotations: Annotated[list[Any] | None, only_neutral([])] = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        texts: list[str] = []
        for part in value:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise PydanticCustomError("content_part", 'Content parts should be {"type": "text", "text": ...}')
            texts.append(part["text"])
        return "".join(texts)

    def for_template(self) -> dict[str, str]:
        """`developer` is OpenAI's newer name of `system`; chat templates know the older one."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class ChatCompletionRequest(SamplingFields):
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, max_length=_MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None

    # accepted: a hint for speed, and one that needs tools
    prediction: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    # refused unless neutral
    tools: Annotated[list[Any] | None, only_neutral([])] = None
    tool_choice: Annotated[Any, only_neutral("none", "auto")] = None
    functions: Annotated[list[Any] | None, only_neutral([])] = None
    function_call: Annotated[Any, only_neutral("none", "auto")] = None
    modalities: Annotated[list[Any] | None, only_neutral(["text"])] = None
    audio: Annotated[dict[str, Any] | None, only_neutral()] = None
    reasoning_effort: Annotated[str | None, only_neutral()] = None
    verbosity: Annotated[str | None, only_neutral()] = None
    web_search_options: Annotated[dict[str, Any] | None, only_neutral()] = None

    @field_validator("messages")
    @classmethod
    def _not_empty(cls, value: list[ChatMessage]) -> list[ChatMessage]:
        if not value:
            raise PydanticCustomError("empty", "There should be at least one message")
        return value

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
        limit = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return GenerateCall(
            request_id=request_id,
            prompt=ChatPrompt(tuple(message.for_template() for message in self.messages)),
            sampling=self._sampling_params(limit),
            clip_max_tokens=limit is None,
            max_tokens_param="max_completion_tokens" if self.max_tokens is None else "max_tokens",
            policy=self.policy,
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            return_prompt_token_ids=bool(self.return_token_ids),
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
