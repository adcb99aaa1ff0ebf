"""Answers over time: several sequences of one request merged, collected, or sent as server-sent events.

Knows calls and renderers; knows neither HTTP requests nor Ray.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from goose_ray.api.answer import Answer
from goose_ray.api.backend import Backend
from goose_ray.api.calls import Delta, GenerateCall
from goose_ray.api.errors import to_reply
from goose_ray.api.rendering import Renderer
from goose_ray.errors import EngineDeadError

__all__ = ["EVENT_HEADERS", "collect", "event_stream", "merged"]

logger = logging.getLogger(__name__)

_DONE = b"data: [DONE]\n\n"
# Proxies must pass events on one by one.
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def merged(
    backend: Backend, calls: Sequence[GenerateCall], *, max_at_once: int
) -> AsyncGenerator[tuple[int, Delta]]:
    """(index of the call, delta) in the order of arrival. Closing it, or a failure of one call, ends all of them.

    `max_at_once` calls are under way at a time; the others wait, in order.
    """
    if len(calls) == 1:
        async with aclosing(backend.generate(calls[0])) as deltas:
            async for delta in deltas:
                yield 0, delta
        return

    arrived: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue()
    places = asyncio.Semaphore(max_at_once)

    async def forward(index: int, call: GenerateCall) -> None:
        async with places, aclosing(backend.generate(call)) as deltas:
            async for delta in deltas:
                arrived.put_nowait((index, delta))

    async def forward_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for index, call in enumerate(calls):
                    group.create_task(forward(index, call))
        finally:
            arrived.put_nowait(None)

    forwarding = asyncio.create_task(forward_all())
    try:
        while (item := await arrived.get()) is not None:
            yield item
        try:
            await forwarding
        except BaseExceptionGroup as group:
            # the first failure cancelled the others: it is the answer
            raise group.exceptions[0] from None
    finally:
        forwarding.cancel()
        await asyncio.wait([forwarding])
        if not forwarding.cancelled():
            # Looked at, so that it is not logged: who closes this early wants no failure either.
            forwarding.exception()


async def collect(deltas: AsyncGenerator[tuple[int, Delta]], num_answers: int) -> list[Answer]:
    answers = [Answer() for _ in range(num_answers)]
    async with aclosing(deltas):
        async for index, delta in deltas:
            answers[index].add(delta)
    return answers


async def event_stream(
    deltas: AsyncGenerator[tuple[int, Delta]],
    renderer: Renderer,
    num_answers: int,
    *,
    include_usage: bool,
    usage_so_far: bool,
    keep_empty: bool,
) -> AsyncIterator[bytes]:
    """Server-sent events, one a step. A failure on the way is sent as an event, as the status is long gone.

    `include_usage`: the last one tells the usage; `usage_so_far`: all others too.

    `keep_empty`: also send the chunks of steps that added nothing (inside a character, or behind a held stop string).
    """
    answers = [Answer() for _ in range(num_answers)]
    try:
        async with aclosing(deltas):
            async for index, delta in deltas:
                answers[index].add(delta)
                known = answers if usage_so_far else None
                if delta.prompt is not None and (opening := renderer.opening(index, delta.prompt, known)) is not None:
                    yield _event(opening.to_json())
                says = delta.text or delta.reasoning or delta.tool_calls
                if says or delta.finish_reason is not None or keep_empty:
                    yield _event(renderer.chunk(index, delta, known).to_json())
        if include_usage:
            yield _event(renderer.usage_chunk(answers).to_json())
    except Exception as error:
        reply = to_reply(error)
        if isinstance(error, EngineDeadError):
            # nobody's fault, and said in full
            logger.warning("a stream ended on the way: %s", error)
        elif reply.status >= 500:
            logger.exception("a stream failed on the way")
        yield _event(json.dumps(reply.body()))
    yield _DONE


def _event(data: str) -> bytes:
    return b"data: " + data.encode() + b"\n\n"
