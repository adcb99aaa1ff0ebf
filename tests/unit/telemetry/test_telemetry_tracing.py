"""Traces of requests: one tree of spans from the client's header down to the decode, with counts and without texts."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest
from engine_app import EngineApp, Http
from engine_helpers import ScriptedSpeculator, make_engine, make_request
from fakes import FakeRunner, looping_model
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import goose_ray.config
from goose_ray.config import GooseConfig
from goose_ray.engine.request import RequestOutput, SpeculationStats
from goose_ray.engine.step import StepBatch
from goose_ray.errors import ConfigError
from goose_ray.telemetry.tracing import Tracing

# of characters that are tokens of the model
ASKED = "4711-0815-0042"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
MODEL = looping_model()


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider)

    def __getitem__(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return span

    @property
    def names(self) -> set[str]:
        return {span.name for span in self.exporter.get_finished_spans()}


@pytest.fixture
def spans() -> Spans:
    return Spans()


def served(spans: Spans, *, stream: bool = False, headers: dict[str, str] = HEADERS, **body: object) -> int:
    """Posts one prompt; the status of the answer."""

    async def scenario(http: Http) -> int:
        response = await http.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": ASKED, "max_tokens": 6, "temperature": 0, "stream": stream, **body},
            headers=headers,
        )
        return response.status_code

    with EngineApp.serving(make_engine(MODEL, ScriptedSpeculator(MODEL, length=2)), spans.tracing) as app:
        return app.run(scenario)


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_a_request_is_one_tree_of_spans_below_the_clients(spans: Spans) -> None:
    assert served(spans, stream=True) == 200
    assert spans.names == {"POST /v1/completions", "stream", "generate", "queue", "prefill", "decode"}
    finished = spans.exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in finished if span.context} == {TRACE}
    request, generate = spans["POST /v1/completions"], spans["generate"]
    assert parent_of(request) == int(PARENT, 16)
    assert request.context is not None
    assert generate.context is not None
    assert parent_of(generate) == parent_of(spans["stream"]) == request.context.span_id
    phases = [spans[name] for name in ("queue", "prefill", "decode")]
    assert {parent_of(span) for span in phases} == {generate.context.span_id}
    # one after the other, from the call's arrival to its end
    assert (phases[0].start_time, phases[-1].end_time) == (generate.start_time, generate.end_time)
    assert all(before.end_time == after.start_time for before, after in pairwise(phases))
    assert [event.name for event in generate.events] == ["first token"]
    assert generate.events[0].timestamp == spans["decode"].start_time


def test_counts_are_those_of_the_answer_and_texts_are_nowhere(spans: Spans) -> None:
    assert served(spans) == 200
    attributes = dict(spans["generate"].attributes or {})
    # a chain of two that is always right: three tokens a step
    assert attributes["gen_ai.usage.output_tokens"] == 6
    assert attributes["goose.steps"] == 2
    assert attributes["goose.tau"] == 3
    assert attributes["goose.accepted_tokens"] == 4
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["gen_ai.usage.input_tokens"] == len(ASKED)
    assert dict(spans["decode"].attributes or {})["goose.drafted_tokens"] == attributes["goose.drafted_tokens"]
    assert dict(spans["POST /v1/completions"].attributes or {})["http.response.status_code"] == 200
    for span in spans.exporter.get_finished_spans():
        assert ASKED not in span.to_json()


def test_who_comes_with_a_trace_that_is_not_kept_is_not_traced(spans: Spans) -> None:
    assert served(spans, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}) == 200
    assert not spans.names
    assert served(spans, headers={"traceparent": "nonsense"}) == 200
    request = spans["POST /v1/completions"]
    assert request.parent is None


def test_a_refused_request_has_its_status(spans: Spans) -> None:
    assert served(spans, temperature=-1) == 400
    assert spans.names == {"POST /v1/completions"}
    request = spans["POST /v1/completions"]
    assert dict(request.attributes or {})["http.response.status_code"] == 400
    assert request.status.status_code is StatusCode.UNSET


def test_paths_that_are_none_name_no_span(spans: Spans) -> None:
    with EngineApp.serving(make_engine(MODEL, ScriptedSpeculator(MODEL)), spans.tracing) as app:
        assert app.run(lambda http: http.post(f"/{ASKED}")).status_code == 404
        assert app.run(lambda http: http.get("/health")).status_code == 200
    assert spans.names == {"POST"}
    assert ASKED not in spans["POST"].to_json()


def test_a_dead_engine_is_an_error_without_its_message(spans: Spans) -> None:
    def die(batch: StepBatch) -> None:
        raise RuntimeError(ASKED)

    engine = make_engine(MODEL, ScriptedSpeculator(MODEL), runner=FakeRunner(MODEL, on_step=die))

    async def scenario(http: Http) -> int:
        return (await http.post("/v1/completions", json={"model": "tiny", "prompt": "1"})).status_code

    with EngineApp.serving(engine, spans.tracing) as app:
        assert app.run(scenario) == 503
    for name in ("generate", "POST /v1/completions"):
        assert spans[name].status.status_code is StatusCode.ERROR
        assert ASKED not in spans[name].to_json()


def output_of(number: int, *, queued_s: float = 0.0) -> RequestOutput:
    stats = SpeculationStats(steps=number, committed=2 * number)
    return RequestOutput(
        request_id="r",
        text="",
        token_ids=(1, 2),
        finish_reason=None,
        stop_reason=None,
        stats=stats,
        num_cached_tokens=0,
        queued_s=queued_s,
    )


async def outputs(count: int, *, queued_s: float = 0.0) -> AsyncGenerator[RequestOutput]:
    for number in range(1, count + 1):
        yield output_of(number, queued_s=queued_s)


def test_a_reader_that_leaves_ends_the_span_with_what_there_was(spans: Spans) -> None:
    async def scenario() -> None:
        watched = spans.tracing.watched(outputs(3), HEADERS, request_id="r", prompt_tokens=5)
        await anext(watched)
        await anext(watched)
        await watched.aclose()

    asyncio.run(scenario())
    attributes = dict(spans["generate"].attributes or {})
    assert attributes["goose.cancelled"] is True
    assert attributes["gen_ai.usage.output_tokens"] == 4


def test_the_queue_is_no_longer_than_the_wait_for_the_first_token(spans: Spans) -> None:
    async def scenario() -> None:
        async for _ in spans.tracing.watched(outputs(1, queued_s=1e6), HEADERS, request_id="r", prompt_tokens=5):
            pass

    asyncio.run(scenario())
    assert spans["prefill"].start_time == spans["prefill"].end_time == spans["decode"].start_time


def test_off_nothing_is_wrapped() -> None:
    tracing, generator = Tracing.to(None, instance="i"), outputs(1)
    assert tracing.watched(generator, HEADERS, request_id="r", prompt_tokens=5) is generator
    assert tracing.headers() is None
    assert not tracing.is_on
    tracing.shutdown()
    asyncio.run(generator.aclose())


def test_a_request_knows_how_long_it_waited_to_be_admitted() -> None:
    now = [1.0]
    engine = make_engine(MODEL, ScriptedSpeculator(MODEL), clock=lambda: now[0])
    engine.add_request(make_request("a"), arrived_s=1.0)
    now[0] = 3.5
    waits = []
    while engine.has_work:
        waits += [output.queued_s for output in engine.step()]
        now[0] += 1
    assert waits
    assert set(waits) == {2.5}


class TestConfiguration:
    def test_without_the_extra_an_endpoint_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(goose_ray.config, "_has_exporter", lambda: False)
        with pytest.raises(ConfigError, match="tracing_endpoint: needs the extra"):
            GooseConfig.from_args({"tracing_endpoint": "http://collector:4318/v1/traces"})
        # set for the whole machine, and for others
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
        assert GooseConfig.from_args({}).tracing_endpoint is None

    @pytest.mark.parametrize(
        ("environment", "endpoint"),
        [
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/traces"),
            (
                {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"},
                "http://t/x",
            ),
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, None),
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, None),
            ({}, None),
        ],
    )
    def test_the_standard_variables_say_where(
        self, environment: dict[str, str], endpoint: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(goose_ray.config, "_has_exporter", lambda: True)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert GooseConfig.from_args({}).tracing_endpoint == endpoint
        assert GooseConfig.from_args({"tracing_endpoint": "http://mine"}).tracing_endpoint == "http://mine"
