"""The HTTP surface: routes, status codes and error bodies. Stateless; knows the system behind it as a `Backend`."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse

from goose_ray.api.backend import Backend
from goose_ray.api.body import read_body
from goose_ray.api.calls import Delta, GenerateCall
from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.cluster_views import acceptance_view, health_view, steps_view
from goose_ray.api.completions import CompletionRequest
from goose_ray.api.context import refuse_too_many_ids
from goose_ray.api.errors import ErrorReply, to_reply
from goose_ray.api.rendering import ChatRenderer, CompletionRenderer, Renderer, RenderOptions
from goose_ray.api.responses import ModelList, ModelObject
from goose_ray.api.sampling_fields import SamplingFields
from goose_ray.api.streaming import collect, event_stream, merged
from goose_ray.api.tools.choice import ToolChoice
from goose_ray.api.tools.reader import with_tool_calls
from goose_ray.api.validation import RequestParser, WireModel
from goose_ray.errors import EngineDeadError, GooseRayError, InvalidRequestError
from goose_ray.telemetry.dashboard.live import live_view
from goose_ray.telemetry.dashboard.page import dashboard_page
from goose_ray.telemetry.metrics import METRICS_CONTENT_TYPE, render_metrics

__all__ = ["HttpLimits", "build_http_app", "client_gone"]

logger = logging.getLogger(__name__)

_Wire = TypeVar("_Wire", bound=WireModel)

_OWNER = "goose-ray"
# Proxies must pass events on one by one.
_EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one request may cost."""

    max_body_bytes: int
    # Of its choices so many are under way at a time: all of them are more than replicas take, and would be refused.
    max_calls_at_once: int
    kv_cache_tokens: int


def build_http_app(backend: Backend, model: str, *, limits: HttpLimits) -> FastAPI:
    """`model` is the one name that requests may ask for."""
    app = FastAPI(title="Goose", description="OpenAI-compatible API of goose-ray.")
    routes = _Routes(backend, model, limits)
    app.add_api_route("/v1/chat/completions", routes.chat_completions, methods=["POST"])
    app.add_api_route("/v1/completions", routes.completions, methods=["POST"])
    for path, endpoint in (
        ("/v1/models", routes.models),
        ("/v1/models/{name:path}", routes.model),
        ("/v1/goose/acceptance", routes.acceptance),
        ("/v1/goose/steps", routes.steps),
        ("/v1/goose/live", routes.live),
        ("/dashboard", routes.dashboard),
        ("/health", routes.health),
        ("/metrics", routes.metrics),
    ):
        app.add_api_route(path, endpoint, methods=["GET"])
        # a route of its own, as an operation of OpenAPI has one method
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    app.add_exception_handler(GooseRayError, _ours)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, client_gone)
    app.add_exception_handler(Exception, _unexpected)
    return app


async def client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads it: the client left before it had sent its request. The status is nginx's for that in logs."""
    return Response(status_code=499)


class _Routes:
    def __init__(self, backend: Backend, model: str, limits: HttpLimits) -> None:
        self._backend = backend
        self._model = model
        self._limits = limits
        self._parser = RequestParser()

    async def chat_completions(self, request: Request) -> Response:
        wire = await self._read(ChatCompletionRequest, request)
        options = self._render_options(wire, f"chatcmpl-{uuid.uuid4().hex}")
        calls = wire.to_calls(options.response_id)
        return await self._answer(wire, calls, ChatRenderer(options), wire.asked_of_tools)

    async def completions(self, request: Request) -> Response:
        wire = await self._read(CompletionRequest, request)
        options = self._render_options(wire, f"cmpl-{uuid.uuid4().hex}")
        return await self._answer(wire, wire.to_calls(options.response_id), CompletionRenderer(options))

    async def models(self) -> Response:
        return _json(ModelList(object="list", data=[await self._model_object()]).to_json())

    async def model(self, name: str) -> Response:
        self._check_model(name)
        return _json((await self._model_object()).to_json())

    async def acceptance(self) -> Response:
        return JSONResponse(acceptance_view(await self._backend.cluster()))

    async def steps(self, last: Annotated[int, Query(ge=1)] = 64) -> Response:
        return JSONResponse(steps_view(await self._backend.steps(last)))

    async def live(self, since: Annotated[float, Query(allow_inf_nan=False)] = 0.0) -> Response:
        state, replicas = await asyncio.gather(self._backend.cluster(), self._backend.live(since))
        shown = live_view(
            state.view, replicas, model=self._model, remembered=state.remembered, since=since, now=time.time()
        )
        return JSONResponse(shown, headers={"Cache-Control": "no-store"})

    async def dashboard(self) -> Response:
        page = dashboard_page()
        return Response(page.html, media_type=page.media_type, headers=page.headers)

    async def health(self) -> Response:
        view = (await self._backend.cluster()).view
        return JSONResponse(health_view(view), status_code=200 if view.healthy else 503)

    async def metrics(self) -> Response:
        view = (await self._backend.cluster()).view
        return Response(render_metrics(view, self._model), media_type=METRICS_CONTENT_TYPE)

    async def _read(self, model: type[_Wire], request: Request) -> _Wire:
        body = await read_body(request, self._limits.max_body_bytes)
        return await self._parser.parse(model, request.headers.get("content-type"), body)

    def _render_options(self, wire: SamplingFields, response_id: str) -> RenderOptions:
        self._check_model(wire.model)
        return RenderOptions(
            response_id=response_id,
            model=self._model,
            token_ids=bool(wire.return_token_ids),
            goose_stats=bool(wire.return_goose_stats),
            stream_usage=wire.include_usage,
            choices_per_prompt=wire.num_choices,
        )

    def _check_model(self, name: str) -> None:
        if name != self._model:
            raise InvalidRequestError(
                f"The model '{name}' does not exist; this server has '{self._model}'",
                param="model",
                code="model_not_found",
                status=404,
            )

    async def _model_object(self) -> ModelObject:
        """Raises EngineDeadError if no replica could answer: a model nobody runs is not listed."""
        healthy = (await self._backend.cluster()).view.healthy
        if not healthy:
            raise EngineDeadError("no replica is healthy")
        report = healthy[0].report
        return ModelObject(
            id=self._model,
            object="model",
            created=int(report.incarnation.started_at),
            owned_by=_OWNER,
            max_model_len=report.max_model_len,
        )

    async def _answer(
        self,
        wire: SamplingFields,
        calls: Sequence[GenerateCall],
        renderer: Renderer,
        tools: ToolChoice | None = None,
    ) -> Response:
        refuse_too_many_ids(calls, self._limits.kv_cache_tokens)
        deltas = merged(self._backend, calls, max_at_once=self._limits.max_calls_at_once)
        if tools is not None and tools.kind != "none":
            deltas = with_tool_calls(deltas, tools)
        if not wire.stream:
            return _json(renderer.whole(await collect(deltas, len(calls))).to_json())
        # The first delta is awaited before the status is sent: whatever refuses the request still gets its own status.
        try:
            first = await anext(deltas, None)
        except BaseException:
            await deltas.aclose()
            raise
        if first is None:
            raise EngineDeadError("the replica ended its answer before it began")
        events = event_stream(
            _chained(first, deltas),
            renderer,
            len(calls),
            include_usage=wire.include_usage,
            keep_empty=bool(wire.return_token_ids) or any(call.sampling.logprobs is not None for call in calls),
        )
        return StreamingResponse(events, media_type="text/event-stream", headers=_EVENT_HEADERS)


async def _chained(
    first: tuple[int, Delta], rest: AsyncGenerator[tuple[int, Delta]]
) -> AsyncGenerator[tuple[int, Delta]]:
    try:
        yield first
        async for item in rest:
            yield item
    finally:
        await rest.aclose()


def _json(body: str) -> Response:
    return Response(body, media_type="application/json")


def _error_response(reply: ErrorReply) -> JSONResponse:
    return JSONResponse(reply.body(), status_code=reply.status, headers=reply.headers())


async def _ours(request: Request, error: Exception) -> Response:
    reply = to_reply(error)
    if reply.status >= 500:
        logger.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=error)
    return _error_response(reply)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises the error again once this is sent, so that it is logged with its traceback."""
    return _error_response(to_reply(error))


async def _bad_query(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    details = error.errors()[0]
    param = str(details["loc"][-1])
    return _error_response(to_reply(InvalidRequestError(f"Invalid value for '{param}': {details['msg']}", param)))


async def _http(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{error.detail}: {request.method} {request.url.path}"
    reply = to_reply(InvalidRequestError(message, param=None, code=None, status=error.status_code))
    return JSONResponse(reply.body(), status_code=reply.status, headers=error.headers)
