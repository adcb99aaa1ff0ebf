"""What clients get back: OpenAI's objects, with vLLM's and our own additions where they were asked for.

A field that was not set is not sent; a field set to None is sent as null, where OpenAI sends null.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from goose_ray.api.calls import AnswerEnd
from goose_ray.api.logprob_replies import ChatLogprobs, CompletionLogprobs, PromptLogprob
from goose_ray.api.reply import Reply
from goose_ray.api.tools.replies import ToolCallChunk, ToolCallReply
from goose_ray.engine.request import SpeculationStats

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatDelta",
    "ChatReply",
    "Completion",
    "CompletionChoice",
    "GooseStats",
    "ModelList",
    "ModelObject",
    "PromptTokensDetails",
    "SourceCounts",
    "Usage",
    "optional",
]


class PromptTokensDetails(Reply):
    """`cached_tokens` of the prompt were in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(Reply):
    """`reasoning_tokens` were spent on thinking before the answer, marks included."""

    reasoning_tokens: int


class Usage(Reply):
    """`completion_tokens` counts delivered tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None

    @classmethod
    def of(
        cls, prompt_tokens: int, completion_tokens: int, *, cached_tokens: int, reasoning_tokens: int | None
    ) -> "Usage":
        """`reasoning_tokens` None: of a model that does not think."""
        thought = None if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
            **optional(completion_tokens_details=thought),
        )


class SourceCounts(Reply):
    attempted: int
    accepted: int


class GooseStats(Reply):
    """How the answer was drafted: `drafted` verified draft nodes, of which `accepted` were committed, in `steps`.

    `tau` is committed tokens / steps, bonus tokens included.
    """

    steps: int
    drafted: int
    accepted: int
    committed: int
    tau: float
    sources: dict[str, SourceCounts]

    @classmethod
    def of(cls, stats: Iterable[SpeculationStats]) -> "GooseStats":
        """Sums over the sequences of a request."""
        parts = list(stats)
        sources: dict[str, tuple[int, int]] = {}
        for part in parts:
            for name, counts in part.by_source.items():
                attempted, accepted = sources.get(name, (0, 0))
                sources[name] = (attempted + counts.attempted, accepted + counts.accepted)
        total = SpeculationStats(
            steps=sum(part.steps for part in parts),
            drafted=sum(part.drafted for part in parts),
            accepted=sum(part.accepted for part in parts),
            committed=sum(part.committed for part in parts),
        )
        return cls(
            steps=total.steps,
            drafted=total.drafted,
            accepted=total.accepted,
            committed=total.committed,
            tau=total.tau,
            sources={
                name: SourceCounts(attempted=attempted, accepted=accepted)
                for name, (attempted, accepted) in sorted(sources.items())
            },
        )


class ChatReply(Reply):
    role: Literal["assistant"] = "assistant"
    # what the model thought, by vLLM's name of it and by DeepSeek's
    reasoning: str | None = None
    reasoning_content: str | None = None
    content: str | None
    tool_calls: list[ToolCallReply] = Field(default_factory=list)


class ChatChoice(Reply):
    index: int
    message: ChatReply
    logprobs: ChatLogprobs | None = None
    finish_reason: AnswerEnd | None
    stop_reason: str | int | None = None
    token_ids: list[int] = Field(default_factory=list)


class ChatCompletion(Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = Field(default_factory=list)
    prompt_logprobs: list[dict[int, PromptLogprob] | None] = Field(default_factory=list)
    goose: GooseStats | None = None


class ChatDelta(Reply):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCallChunk] = Field(default_factory=list)


class ChatChunkChoice(Reply):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: AnswerEnd | None
    stop_reason: str | int | None = None
    token_ids: list[int] = Field(default_factory=list)


class ChatChunk(Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] = Field(default_factory=list)
    goose: GooseStats | None = None


class CompletionChoice(Reply):
    """Also the choice of a stream's chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: AnswerEnd | None
    stop_reason: str | int | None = None
    token_ids: list[int] = Field(default_factory=list)
    prompt_token_ids: list[int] = Field(default_factory=list)
    prompt_logprobs: list[dict[int, PromptLogprob] | None] = Field(default_factory=list)


class Completion(Reply):
    """Also the chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    goose: GooseStats | None = None


class ModelObject(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Reply):
    object: Literal["list"]
    data: list[ModelObject]


def optional(**fields: Any) -> dict[str, Any]:
    """Keyword arguments for those `fields` that have a value: the others stay unset."""
    return {name: value for name, value in fields.items() if value is not None}
