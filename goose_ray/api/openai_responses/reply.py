"""A response as clients get it, at its begin, on its way and at its end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from goose_ray.api.answer import Answer
from goose_ray.api.openai_responses.output import OutputItem
from goose_ray.api.openai_responses.request import ResponsesRequest
from goose_ray.api.reply import Reply

__all__ = ["ResponseObject", "ResponseShell", "ResponseUsage"]


class InputTokensDetails(Reply):
    cached_tokens: int
    # nobody pays for what is kept here
    cache_write_tokens: int


class OutputTokensDetails(Reply):
    reasoning_tokens: int


class ResponseUsage(Reply):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, answer: Answer) -> "ResponseUsage":
        num_input, num_output = answer.prompt.num_tokens, len(answer.token_ids)
        return cls(
            input_tokens=num_input,
            input_tokens_details=InputTokensDetails(cached_tokens=answer.prompt.num_cached, cache_write_tokens=0),
            output_tokens=num_output,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=answer.num_reasoning_tokens or 0),
            total_tokens=num_input + num_output,
        )


class IncompleteDetails(Reply):
    reason: Literal["max_output_tokens"]


class ResponseFault(Reply):
    code: str
    message: str


class ResponseObject(Reply):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    # what the request asks of it: nothing
    reasoning: None
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseShell:
    """What a response says of its request, whatever comes of it."""

    response_id: str
    wire: ResponsesRequest
    created_at: int = field(default_factory=lambda: int(time.time()))

    def under_way(self) -> ResponseObject:
        return self._object(status="in_progress")

    def finished(self, output: Sequence[OutputItem], answer: Answer) -> ResponseObject:
        is_cut = answer.finish_reason == "length"
        return self._object(
            status="incomplete" if is_cut else "completed",
            completed_at=None if is_cut else int(time.time()),
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if is_cut else None,
            output=list(output),
            usage=ResponseUsage.of(answer),
        )

    def failed(self, output: Sequence[OutputItem], *, code: str, message: str) -> ResponseObject:
        return self._object(status="failed", error=ResponseFault(code=code, message=message), output=list(output))

    def _object(self, **state: Any) -> ResponseObject:
        wire = self.wire
        chosen = wire.tool_choice or "auto"
        text = {} if wire.text is None else wire.text.model_dump(by_alias=True, exclude_unset=True)
        return ResponseObject(
            **{
                "completed_at": None,
                "error": None,
                "incomplete_details": None,
                "output": [],
                "usage": None,
                **state,
            },
            id=self.response_id,
            object="response",
            created_at=self.created_at,
            background=False,
            instructions=wire.instructions,
            max_output_tokens=wire.max_output_tokens,
            metadata=wire.metadata or {},
            model=wire.model,
            parallel_tool_calls=wire.parallel_tool_calls is not False,
            previous_response_id=None,
            reasoning=None,
            store=False,
            temperature=1.0 if wire.temperature is None else wire.temperature,
            text={**text, "format": text.get("format") or {"type": "text"}},
            tool_choice=chosen if isinstance(chosen, str) else chosen.model_dump(),
            tools=[{"strict": None, **tool.model_dump()} for tool in wire.tools or ()],
            top_logprobs=wire.top_logprobs or 0,
            top_p=1.0 if wire.top_p is None else wire.top_p,
            truncation="disabled",
        )
