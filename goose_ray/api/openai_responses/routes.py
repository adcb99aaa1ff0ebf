"""`POST /v1/responses`: a chat request in other words, answered as items, whole or as OpenAI's events."""

import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from goose_ray.api.answer import Answer
from goose_ray.api.answering import Answering, begun
from goose_ray.api.auth.tenant import tenant_of
from goose_ray.api.calls import Delta
from goose_ray.api.errors import to_reply
from goose_ray.api.openai_responses.output import Output
from goose_ray.api.openai_responses.reply import ResponseObject, ResponseShell
from goose_ray.api.openai_responses.request import ResponsesRequest, in_the_words_of_responses
from goose_ray.api.request_reader import RequestReader
from goose_ray.api.streaming import EVENT_HEADERS
from goose_ray.errors import InvalidRequestError

__all__ = ["ResponsesRoutes"]

logger = logging.getLogger(__name__)

_Deltas = AsyncGenerator[tuple[int, Delta]]


class ResponsesRoutes:
    def __init__(self, answering: Answering, reader: RequestReader) -> None:
        self._answering = answering
        self._reader = reader

    async def create(self, request: Request) -> Response:
        wire = await self._reader.read(ResponsesRequest, request)
        self._reader.check_model(wire.model)
        shell = ResponseShell(response_id=f"resp_{uuid.uuid4().hex}", wire=wire)
        try:
            chat = wire.for_chat()
            tools = chat.asked_of_tools
            deltas = self._answering.deltas(chat.to_calls(shell.response_id), tenant=tenant_of(request), tools=tools)
            output = Output(may_call=tools is not None and tools.kind != "none")
            if wire.stream:
                events = _events(await begun(deltas), shell, output)
                return StreamingResponse(events, media_type="text/event-stream", headers=EVENT_HEADERS)
            whole = await _collected(deltas, shell, output)
            return Response(whole.to_json(), media_type="application/json")
        except InvalidRequestError as error:
            raise in_the_words_of_responses(error, wire) from None


async def _collected(deltas: _Deltas, shell: ResponseShell, output: Output) -> ResponseObject:
    answer = Answer()
    async with aclosing(deltas):
        async for _, delta in deltas:
            answer.add(delta)
            output.add(delta)
    return shell.finished(output.items, answer)


async def _events(deltas: _Deltas, shell: ResponseShell, output: Output) -> AsyncIterator[bytes]:
    """Server-sent events, numbered. The last one is completed, incomplete or failed."""
    answer, numbered = Answer(), _Numbered()
    yield numbered("response.created", {"response": shell.under_way()})
    yield numbered("response.in_progress", {"response": shell.under_way()})
    try:
        async with aclosing(deltas):
            async for _, delta in deltas:
                answer.add(delta)
                for kind, fields in output.add(delta):
                    yield numbered(kind, fields)
        finished = shell.finished(output.items, answer)
        yield numbered(f"response.{finished.status}", {"response": finished})
    except Exception as error:
        if isinstance(error, InvalidRequestError):
            error = in_the_words_of_responses(error, shell.wire)
        reply = to_reply(error)
        if reply.status >= 500:
            logger.exception("a stream failed on the way")
        for kind, fields in output.close("incomplete"):
            yield numbered(kind, fields)
        failed = shell.failed(output.items, code=reply.code or reply.type, message=reply.message)
        yield numbered("response.failed", {"response": failed})


class _Numbered:
    """Events with their place in the stream."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": self._next, **fields}, default=_as_data)
        self._next += 1
        return f"event: {kind}\ndata: {data}\n\n".encode()


def _as_data(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    raise TypeError(f"{type(value).__name__} is no part of an event")
