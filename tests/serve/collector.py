"""A small OpenTelemetry collector: takes traces by OTLP over HTTP and keeps them.

It listens from the moment it is made, so that its address can be told before anybody runs.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

__all__ = ["CollectedSpan", "Collector"]


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """Ids in hex, times in nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    def __init__(self) -> None:
        self._spans: list[CollectedSpan] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1/traces"

    @contextmanager
    def collecting(self) -> Iterator[None]:
        thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    @property
    def spans(self) -> list[CollectedSpan]:
        return list(self._spans)

    def trace(self, trace_id: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                is_known = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                if is_known:
                    collector._spans += _spans_of(request)
                self.send_response(200 if is_known else 400)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Not on the terminal."""

        return Handler


def _spans_of(request: ExportTraceServiceRequest) -> list[CollectedSpan]:
    return [
        CollectedSpan(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes=_plain(span.attributes),
            resource=_plain(group.resource.attributes),
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    return None if kind is None else getattr(pair.value, kind)
