"""Traces of requests in OpenTelemetry's form: how long each waited, was read and was written, and what speculation did.

Counts and durations alone: no text and no token of anybody. Off, nothing of OpenTelemetry is imported and nothing is
wrapped. Knows neither HTTP nor Serve; W3C trace headers are how a trace gets from one process to another.
"""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from goose_ray.engine.request import RequestOutput

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

__all__ = ["Tracing"]

_SERVICE = "goose-ray"


class Tracing:
    """Spans of this process; without a provider it is off. Not to be sent to another process."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("goose_ray")

    @classmethod
    def to(cls, endpoint: str | None, *, instance: str, sample: float = 1.0) -> "Tracing":
        """Spans go to `endpoint` by OTLP over HTTP, in batches, on a thread of their own; None: off.

        `sample` is the part of the traces beginning here that is kept; who comes with one has decided. `instance` names
        the process.
        """
        if endpoint is None:
            return cls()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes first.
        ours = Resource({"service.name": _SERVICE, "service.instance.id": instance})
        provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(sample), resource=ours.merge(OTELResourceDetector().detect())
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider)

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    def shutdown(self) -> None:
        """Sends what has not been sent. Idempotent."""
        if self._provider is not None:
            self._provider.shutdown()

    @contextmanager
    def request(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Any]) -> "Iterator[Span]":
        """A client's request, part of the trace that its headers name, as long as the context lasts. Only if it is on.

        Of exceptions nothing is kept: their messages may quote the client.
        """
        from opentelemetry.trace import SpanKind, use_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        assert self._tracer is not None
        parent = TraceContextTextMapPropagator().extract(dict(headers))
        span = self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield span

    def part(self, span: "Span", name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> None:
        """A span below another one, of what is past. Only if it is on."""
        from opentelemetry.trace import set_span_in_context

        assert self._tracer is not None
        context = set_span_in_context(span)
        self._tracer.start_span(name, context=context, attributes=attributes, start_time=start_ns).end(end_ns)

    def headers(self) -> dict[str, str] | None:
        """What carries the trace of the request in progress to another process."""
        if self._tracer is None:
            return None
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier

    def watched(
        self,
        outputs: AsyncGenerator[RequestOutput],
        headers: Mapping[str, str] | None,
        *,
        request_id: str,
        prompt_tokens: int,
    ) -> AsyncGenerator[RequestOutput]:
        """The same outputs; their spans belong to the trace that the headers carry. Off, or without headers, it is the
        generator itself.
        """
        if self._tracer is None or headers is None:
            return outputs
        attributes = {"gen_ai.usage.input_tokens": prompt_tokens, "goose.request_id": request_id}
        return self._watched(outputs, headers, attributes)

    async def _watched(
        self, outputs: AsyncGenerator[RequestOutput], headers: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> AsyncGenerator[RequestOutput]:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        assert self._tracer is not None
        started_ns = time.time_ns()
        # Spans are given their parents: a generator runs in the context of whoever asks it for the next item.
        parent = TraceContextTextMapPropagator().extract(dict(headers))
        span = self._tracer.start_span(
            "generate", context=parent, kind=SpanKind.SERVER, attributes=attributes, start_time=started_ns
        )
        first_ns: int | None = None
        last: RequestOutput | None = None
        try:
            async with aclosing(outputs):
                async for last in outputs:
                    if first_ns is None:
                        first_ns = time.time_ns()
                        self._before_first_token(span, last, started_ns, first_ns)
                    yield last
        except Exception as error:
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            ended_ns = time.time_ns()
            if first_ns is not None and last is not None:
                self._after_first_token(span, last, first_ns, ended_ns)
            if last is None or last.finish_reason is None:
                span.set_attribute("goose.cancelled", True)
            span.end(ended_ns)

    def _before_first_token(self, span: "Span", output: RequestOutput, started_ns: int, first_ns: int) -> None:
        admitted_ns = min(first_ns, started_ns + int(output.queued_s * 1e9))
        self.part(span, "queue", started_ns, admitted_ns, {})
        self.part(span, "prefill", admitted_ns, first_ns, {"goose.cached_tokens": output.num_cached_tokens})
        span.add_event("first token", timestamp=first_ns)

    def _after_first_token(self, span: "Span", last: RequestOutput, first_ns: int, ended_ns: int) -> None:
        stats = last.stats
        counts = {
            "goose.steps": stats.steps,
            "goose.tau": stats.tau,
            "goose.drafted_tokens": stats.drafted,
            "goose.accepted_tokens": stats.accepted,
        }
        self.part(span, "decode", first_ns, ended_ns, counts)
        span.set_attributes({"gen_ai.usage.output_tokens": stats.committed, **counts})
        if last.finish_reason is not None:
            span.set_attribute("gen_ai.response.finish_reasons", [last.finish_reason])
