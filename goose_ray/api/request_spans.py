"""A span for every request that asks for an answer, from its arrival to the last byte sent: ASGI middleware.

Goes around the application only where tracing is on. Knows routes and statuses, and no bodies.
"""

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from goose_ray.telemetry.tracing import Tracing

__all__ = ["RequestSpans"]


class RequestSpans:
    """Of POST alone: whoever polls metrics or the dashboard would fill the traces with that."""

    def __init__(self, app: ASGIApp, tracing: Tracing, model: str) -> None:
        self._app = app
        self._tracing = tracing
        self._attributes = {"http.request.method": "POST", "gen_ai.request.model": model}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import Status, StatusCode

        sent = _Sent(send)
        with self._tracing.request("POST", Headers(scope=scope), self._attributes) as span:
            try:
                await self._app(scope, receive, sent)
            finally:
                # Known once a route has been found; unknown paths are of the client's making.
                if (route := scope.get("route")) is not None:
                    span.update_name(f"POST {route.path}")
                    span.set_attribute("http.route", route.path)
                if sent.status is not None:
                    span.set_attribute("http.response.status_code", sent.status)
                if sent.status is None or sent.status >= 500:
                    span.set_status(Status(StatusCode.ERROR))
                if sent.is_stream:
                    counts = {"goose.stream.chunks": sent.num_chunks, "goose.cancelled": not sent.is_whole}
                    self._tracing.part(span, "stream", sent.started_ns, time.time_ns(), counts)


class _Sent:
    """Passes messages on and notes what they are."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.is_stream = self.is_whole = False
        self.started_ns = self.num_chunks = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.started_ns = time.time_ns()
            self.is_stream = Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
        elif message["type"] == "http.response.body":
            self.num_chunks += bool(message.get("body"))
            self.is_whole = not message.get("more_body", False)
        await self._send(message)
