"""Answers in the shape of an endpoint: whole, and as the chunks of a stream.

Both endpoints stream alike; what differs is how a chunk looks, and that is all a `Renderer` knows.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from goose_ray.api.answer import Answer
from goose_ray.api.calls import Delta, PromptInfo
from goose_ray.api.logprob_replies import ChatLogprobs, CompletionLogprobs, prompt_logprobs
from goose_ray.api.reply import Reply
from goose_ray.api.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatReply,
    Completion,
    CompletionChoice,
    GooseStats,
    Usage,
    optional,
)
from goose_ray.api.tools.replies import ToolCallChunk, calls_of

__all__ = ["ChatRenderer", "CompletionRenderer", "RenderOptions", "Renderer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What the request asked to see."""

    response_id: str
    model: str
    token_ids: bool = False
    goose_stats: bool = False
    # every chunk of a stream says `usage`, null but for the last one
    stream_usage: bool = False
    # successive choices answer the same prompt
    choices_per_prompt: int = 1
    created: int = field(default_factory=lambda: int(time.time()))


def _usage(answers: Sequence[Answer], options: RenderOptions) -> Usage:
    """A prompt counts once, however many choices answer it, as soon as one of them is begun."""
    each = options.choices_per_prompt
    of_prompts = [answers[start : start + each] for start in range(0, len(answers), each)]
    begun = [next((answer for answer in choices if answer.is_begun), None) for choices in of_prompts]
    prompts = [answer.prompt for answer in begun if answer is not None]
    thought = [answer.num_reasoning_tokens for answer in answers if answer.num_reasoning_tokens is not None]
    return Usage.of(
        sum(prompt.num_tokens for prompt in prompts),
        sum(len(answer.token_ids) for answer in answers),
        cached_tokens=sum(prompt.num_cached for prompt in prompts),
        reasoning_tokens=sum(thought) if thought else None,
    )


class Renderer(Protocol):
    def whole(self, answers: Sequence[Answer]) -> Reply: ...

    def opening(self, index: int, prompt: PromptInfo, so_far: Sequence[Answer] | None) -> Reply | None:
        """The chunk before the first of choice `index`, if there is one. It tells the usage of the answers `so_far`."""
        ...

    def chunk(self, index: int, delta: Delta, so_far: Sequence[Answer] | None) -> Reply: ...

    def usage_chunk(self, answers: Sequence[Answer]) -> Reply: ...


class ChatRenderer:
    def __init__(self, options: RenderOptions) -> None:
        self._options = options

    def whole(self, answers: Sequence[Answer]) -> ChatCompletion:
        options = self._options
        return ChatCompletion(
            id=options.response_id,
            object="chat.completion",
            created=options.created,
            model=options.model,
            choices=[
                ChatChoice(
                    index=index,
                    message=_message(answer),
                    logprobs=None if answer.scores is None else ChatLogprobs.of(answer.scores),
                    finish_reason=answer.finish_reason,
                    stop_reason=answer.stop_reason,
                    **optional(token_ids=answer.token_ids if options.token_ids else None),
                )
                for index, answer in enumerate(answers)
            ],
            usage=_usage(answers, options),
            **optional(
                prompt_token_ids=list(answers[0].prompt.token_ids or ()) if options.token_ids else None,
                prompt_logprobs=prompt_logprobs(answers[0].prompt.likely),
                goose=GooseStats.of(a.stats for a in answers) if options.goose_stats else None,
            ),
        )

    def opening(self, index: int, prompt: PromptInfo, so_far: Sequence[Answer] | None) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index, delta=ChatDelta(role="assistant", content=""), logprobs=None, finish_reason=None
        )
        ids = list(prompt.token_ids or ()) if self._options.token_ids else None
        return self._chunk([choice], so_far, prompt_token_ids=ids)

    def chunk(self, index: int, delta: Delta, so_far: Sequence[Answer] | None) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(
                **optional(
                    reasoning=delta.reasoning or None,
                    reasoning_content=delta.reasoning or None,
                    content=delta.text or None,
                    tool_calls=[ToolCallChunk.of(call) for call in delta.tool_calls] or None,
                )
            ),
            logprobs=ChatLogprobs.of(delta.scores) if delta.scores else None,
            finish_reason=delta.finish_reason,
            **optional(
                stop_reason=delta.stop_reason, token_ids=list(delta.token_ids) if self._options.token_ids else None
            ),
        )
        return self._chunk([choice], so_far, goose=_goose_of(delta, self._options))

    def usage_chunk(self, answers: Sequence[Answer]) -> ChatChunk:
        return self._chunk([], answers)

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        counted: Sequence[Answer] | None,
        *,
        prompt_token_ids: list[int] | None = None,
        goose: GooseStats | None = None,
    ) -> ChatChunk:
        options = self._options
        return ChatChunk(
            id=options.response_id,
            object="chat.completion.chunk",
            created=options.created,
            model=options.model,
            choices=choices,
            **_stream_usage(counted, options),
            **optional(prompt_token_ids=prompt_token_ids, goose=goose),
        )


class CompletionRenderer:
    def __init__(self, options: RenderOptions) -> None:
        self._options = options

    def whole(self, answers: Sequence[Answer]) -> Completion:
        options = self._options
        return Completion(
            id=options.response_id,
            object="text_completion",
            created=options.created,
            model=options.model,
            choices=[
                CompletionChoice(
                    index=index,
                    text=(answer.prompt.text or "") + answer.text,
                    logprobs=None
                    if answer.scores is None
                    else CompletionLogprobs.of([*(answer.prompt.scores or ()), *answer.scores]),
                    finish_reason=answer.finish_reason,
                    stop_reason=answer.stop_reason,
                    **optional(
                        token_ids=answer.token_ids if options.token_ids else None,
                        prompt_token_ids=list(answer.prompt.token_ids or ()) if options.token_ids else None,
                        prompt_logprobs=prompt_logprobs(answer.prompt.likely),
                    ),
                )
                for index, answer in enumerate(answers)
            ],
            usage=_usage(answers, options),
            **optional(goose=GooseStats.of(a.stats for a in answers) if options.goose_stats else None),
        )

    def opening(self, index: int, prompt: PromptInfo, so_far: Sequence[Answer] | None) -> Completion | None:
        """The prompt, if the answer begins with it."""
        if prompt.text is None:
            return None
        choice = CompletionChoice(
            index=index,
            text=prompt.text,
            logprobs=CompletionLogprobs.of(prompt.scores) if prompt.scores else None,
            finish_reason=None,
        )
        return self._chunk([choice], so_far)

    def chunk(self, index: int, delta: Delta, so_far: Sequence[Answer] | None) -> Completion:
        ids = self._options.token_ids
        choice = CompletionChoice(
            index=index,
            text=delta.text,
            logprobs=CompletionLogprobs.of(delta.scores) if delta.scores else None,
            finish_reason=delta.finish_reason,
            **optional(
                stop_reason=delta.stop_reason,
                token_ids=list(delta.token_ids) if ids else None,
                prompt_token_ids=list(delta.prompt.token_ids or ()) if ids and delta.prompt else None,
            ),
        )
        return self._chunk([choice], so_far, goose=_goose_of(delta, self._options))

    def usage_chunk(self, answers: Sequence[Answer]) -> Completion:
        return self._chunk([], answers)

    def _chunk(
        self, choices: list[CompletionChoice], counted: Sequence[Answer] | None, *, goose: GooseStats | None = None
    ) -> Completion:
        options = self._options
        return Completion(
            id=options.response_id,
            object="text_completion",
            created=options.created,
            model=options.model,
            choices=choices,
            **_stream_usage(counted, options),
            **optional(goose=goose),
        )


def _stream_usage(counted: Sequence[Answer] | None, options: RenderOptions) -> dict[str, Usage | None]:
    if not options.stream_usage:
        return {}
    return {"usage": None if counted is None else _usage(counted, options)}


def _message(answer: Answer) -> ChatReply:
    """Without content beside tool calls or thinking, told or not, it is null, as OpenAI has it."""
    thought = answer.reasoning or None
    told = {"reasoning": thought, "reasoning_content": thought} if answer.prompt.tells_reasoning else {}
    calls = calls_of(answer.tool_calls)
    content = (answer.text or None) if calls or answer.num_reasoning_tokens else answer.text
    return ChatReply(role="assistant", content=content, **told, **({"tool_calls": calls} if calls else {}))


def _goose_of(delta: Delta, options: RenderOptions) -> GooseStats | None:
    """A choice's last chunk tells how it was drafted, if that was asked for."""
    return GooseStats.of([delta.stats]) if options.goose_stats and delta.stats is not None else None
