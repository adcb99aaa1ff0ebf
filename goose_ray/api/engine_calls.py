"""Calls answered by an engine loop: prompts to token ids, steps to deltas, refusals in the client's words.

Knows an engine loop and its tokenizer; knows neither Serve nor who calls.
"""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from goose_ray.api.bad_words import spellings
from goose_ray.api.calls import (
    ChatPrompt,
    DecodeCall,
    Delta,
    EncodeCall,
    Encoded,
    Failure,
    GenerateCall,
    PromptInfo,
    TokenScores,
)
from goose_ray.api.context import fit_to_context
from goose_ray.api.prompts import PromptReader
from goose_ray.api.reasoning.prompting import ReasoningPrompts
from goose_ray.api.scoring import AnswerScores, likely_tokens
from goose_ray.api.tools.prompting import ToolPrompts
from goose_ray.engine.loop import EngineLoop
from goose_ray.engine.request import GenerationRequest, RequestOutput
from goose_ray.errors import GooseRayError, InvalidRequestError
from goose_ray.telemetry.tracing import Tracing

__all__ = ["EngineCalls", "as_data"]

_Answer = TypeVar("_Answer")


class EngineCalls:
    """The loop must be started before a call is answered, and is not stopped here.

    `tool_parser` and `reasoning_parser` are the configuration's. `nodes_of_auto` is what a call's budget `auto` stands
    for, None the engine's own budget. Raises ConfigError if the tool parser does not fit the model.
    """

    def __init__(
        self,
        engine: EngineLoop,
        *,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        nodes_of_auto: int | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._engine = engine
        self._nodes_of_auto = nodes_of_auto
        self._tracing = tracing or Tracing()
        self._tools = ToolPrompts(engine.tokenizer, tool_parser)
        self._reasoning = ReasoningPrompts(engine.tokenizer, reasoning_parser)
        self._prompts = PromptReader(engine.tokenizer, engine.max_model_len, self._tools)

    async def answer(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        """One delta a step. Closing it cancels the request before the next step.

        Raises InvalidRequestError naming the client's field, OverloadedError, EngineDeadError, or GooseRayError if the
        engine gives the request up.
        """
        try:
            request = await self.to_request(call)
            is_first = True
            echoed = self._prompts.echoed(call, request.prompt_token_ids)
            scores = AnswerScores(self._engine.tokenizer, offset=len(echoed or ""))
            place = self._reasoning.place(call, request.prompt_token_ids)
            reader = None if place is None else place.reader(told=call.tells_reasoning)
            watched = self._tracing.watched(
                self._engine.generate(request),
                call.trace,
                request_id=call.request_id,
                prompt_tokens=len(request.prompt_token_ids),
            )
            async with aclosing(watched) as outputs:
                async for output in outputs:
                    if output.finish_reason == "abort":
                        raise output.error or GooseRayError("the engine gave this request up; its log says why")
                    prompt = self._prompt_info(call, request, output, echoed) if is_first else None
                    delta = _delta(output, prompt, None if output.logprobs is None else scores.add(output.logprobs))
                    delta = delta if reader is None else reader.read(delta)
                    yield _without_answer(delta) if call.is_prompt_only else delta
                    is_first = False
        except InvalidRequestError as error:
            raise _in_the_clients_words(error, call) from None

    async def to_request(self, call: GenerateCall) -> GenerationRequest:
        """Raises InvalidRequestError if the prompt is none or the context does not hold it."""
        token_ids = await self._prompts.read(call)
        sampling = replace(
            fit_to_context(call, len(token_ids), self._engine.max_model_len),
            bad_word_ids=spellings(call.bad_words, self._engine.tokenizer),
            prompt_logprobs=_most(call.sampling.prompt_logprobs, call.prompt_logprobs),
        )
        shown = self._tools.shown_token_ids(call.prompt)
        if (place := self._reasoning.place(call, token_ids)) is not None:
            sampling, shown = place.behind(sampling), shown | place.shown_token_ids
        return GenerationRequest(
            request_id=call.request_id,
            prompt_token_ids=token_ids,
            sampling=sampling,
            committed_ids=call.committed_ids,
            policy=call.policy,
            budget=self._nodes_of_auto if call.budget == "auto" else call.budget,
            cache_salt=call.cache_salt,
            priority=call.priority,
            shown_token_ids=shown,
        )

    async def encode(self, call: EncodeCall) -> Encoded:
        """Raises InvalidRequestError naming the client's field."""
        try:
            token_ids = await self._prompts.encode(call)
        except InvalidRequestError as error:
            param = error.param or ("messages" if isinstance(call.prompt, ChatPrompt) else "prompt")
            raise InvalidRequestError(error.message, param, error.code, error.status) from None
        token_bytes = self._engine.tokenizer.token_bytes
        strings = tuple(token_bytes(one).decode(errors="replace") for one in token_ids) if call.with_strings else None
        return Encoded(token_ids, self._engine.max_model_len, strings)

    async def decode(self, call: DecodeCall) -> str:
        """Raises InvalidRequestError for what is no token."""
        return await self._prompts.decode(call)

    def stop(self) -> None:
        """Reads no more prompts."""
        self._prompts.stop()

    def _prompt_info(
        self, call: GenerateCall, request: GenerationRequest, output: RequestOutput, echoed: str | None
    ) -> PromptInfo:
        token_ids = request.prompt_token_ids
        scores = likely = None
        found, tokenizer = output.prompt_logprobs, self._engine.tokenizer
        if found is not None and call.sampling.prompt_logprobs is not None:
            scores = AnswerScores(tokenizer).add_prompt(
                token_ids[0], [replace(one, top=one.top[: call.sampling.prompt_logprobs]) for one in found]
            )
        if found is not None and call.prompt_logprobs is not None:
            likely = likely_tokens(tokenizer, found, call.prompt_logprobs)
        return PromptInfo(
            len(token_ids),
            token_ids if call.return_prompt_token_ids else None,
            num_cached=output.num_cached_tokens,
            text=echoed,
            scores=scores,
            likely=likely,
            tool_format=self._tools.format_name(call.prompt),
            model_id=self._engine.spec.model_id,
        )


async def as_data(answer: Awaitable[_Answer]) -> _Answer | Failure:
    """With our errors as a `Failure`, as they cross from a replica to the ingress."""
    try:
        return await answer
    except GooseRayError as error:
        return Failure(error)


def _delta(output: RequestOutput, prompt: PromptInfo | None, scores: tuple[TokenScores, ...] | None) -> Delta:
    return Delta(
        text=output.text,
        token_ids=output.token_ids,
        prompt=prompt,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        stats=output.stats if output.finish_reason is not None else None,
        scores=scores,
    )


def _without_answer(delta: Delta) -> Delta:
    """Of the only step of a call that asks for its prompt."""
    stats = None if delta.stats is None else replace(delta.stats, accepted=0, committed=0)
    scores = None if delta.scores is None else ()
    return replace(delta, text="", token_ids=(), scores=scores, stats=stats, finish_reason="length", stop_reason=None)


def _in_the_clients_words(error: InvalidRequestError, call: GenerateCall) -> InvalidRequestError:
    """The engine names its own fields; the client sent others."""
    names = {"prompt": call.prompt_param, None: call.prompt_param, "policy": "goose.policy", "budget": "goose.budget"}
    param = names.get(error.param, error.param)
    message = error.message
    if error.param in ("policy", "budget"):
        message = message.replace(error.param, f"goose.{error.param}", 1)
    return InvalidRequestError(message, param, error.code, error.status)


def _most(*counts: int | None) -> int | None:
    """What serves all that ask."""
    return max((count for count in counts if count is not None), default=None)
