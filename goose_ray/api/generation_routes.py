"""Routes that answer prompts in the shapes of chat and text completions, streamed or whole."""

import uuid
from collections.abc import Sequence

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from goose_ray.api.answering import Answering, begun
from goose_ray.api.auth.tenant import tenant_of
from goose_ray.api.calls import GenerateCall
from goose_ray.api.chat import ChatCompletionRequest
from goose_ray.api.completions import CompletionRequest
from goose_ray.api.rendering import ChatRenderer, CompletionRenderer, Renderer, RenderOptions
from goose_ray.api.request_reader import RequestReader
from goose_ray.api.sampling_fields import SamplingFields
from goose_ray.api.streaming import EVENT_HEADERS, collect, event_stream
from goose_ray.api.tools.choice import ToolChoice

__all__ = ["GenerationRoutes"]


class GenerationRoutes:
    def __init__(self, answering: Answering, reader: RequestReader) -> None:
        self._answering = answering
        self._reader = reader

    async def chat_completions(self, request: Request) -> Response:
        wire = await self._reader.read(ChatCompletionRequest, request)
        options = self._render_options(wire, f"chatcmpl-{uuid.uuid4().hex}")
        calls = wire.to_calls(options.response_id)
        return await self._answer(request, wire, calls, ChatRenderer(options), wire.asked_of_tools)

    async def completions(self, request: Request) -> Response:
        wire = await self._reader.read(CompletionRequest, request)
        options = self._render_options(wire, f"cmpl-{uuid.uuid4().hex}")
        return await self._answer(request, wire, wire.to_calls(options.response_id), CompletionRenderer(options))

    def _render_options(self, wire: SamplingFields, response_id: str) -> RenderOptions:
        self._reader.check_model(wire.model)
        return RenderOptions(
            response_id=response_id,
            model=self._reader.model,
            token_ids=bool(wire.return_token_ids),
            goose_stats=bool(wire.return_goose_stats),
            stream_usage=wire.include_usage,
            choices_per_prompt=wire.num_choices,
        )

    async def _answer(
        self,
        request: Request,
        wire: SamplingFields,
        calls: Sequence[GenerateCall],
        renderer: Renderer,
        tools: ToolChoice | None = None,
    ) -> Response:
        deltas = self._answering.deltas(
            calls, tenant=tenant_of(request), tools=tools, choices_per_prompt=wire.num_choices
        )
        if not wire.stream:
            answer = renderer.whole(await collect(deltas, len(calls)))
            return Response(answer.to_json(), media_type="application/json")
        events = event_stream(
            await begun(deltas),
            renderer,
            len(calls),
            include_usage=wire.include_usage,
            usage_so_far=wire.continuous_usage,
            keep_empty=bool(wire.return_token_ids) or any(call.sampling.logprobs is not None for call in calls),
        )
        return StreamingResponse(events, media_type="text/event-stream", headers=EVENT_HEADERS)
