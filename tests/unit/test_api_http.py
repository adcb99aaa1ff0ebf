"""The HTTP surface over a scripted backend: shapes of answers and streams, error bodies, and what a hang-up does."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from goose.calibration import AcceptanceTable
from goose_ray.api.backend import ClusterState, ReplicaSteps
from goose_ray.api.calls import Delta, GenerateCall, PromptInfo
from goose_ray.api.http_app import HttpLimits, build_http_app
from goose_ray.engine.request import SourceStats, SpeculationStats
from goose_ray.engine.stats import EngineStats
from goose_ray.engine.trace import SequenceRecord, StepRecord
from goose_ray.errors import EngineDeadError, InvalidRequestError, OverloadedError
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.report import Incarnation, ReplicaReport

MODEL = "tiny"
MAX_BODY_BYTES = 200_000
LIMITS = HttpLimits(max_body_bytes=MAX_BODY_BYTES, max_calls_at_once=2, kv_cache_tokens=1000)
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
JSON = {"content-type": "application/json"}
STATS = SpeculationStats(
    steps=2, drafted=6, accepted=3, committed=5, by_source={"context": SourceStats(attempted=4, accepted=3)}
)
# two steps: "Hé" in one, "llo" in the other
SCRIPT: list[Delta | Exception] = [
    Delta(text="Hé", token_ids=(1, 2), prompt=PromptInfo(3, (7, 8, 9), num_cached=2)),
    Delta(text="llo", token_ids=(3, 4, 5), finish_reason="stop", stop_reason="END", stats=STATS),
]


class ScriptedBackend:
    """Plays `script` for every call and keeps account of the calls."""

    def __init__(self, script: Sequence[Delta | Exception] = SCRIPT, *, healthy: bool = True) -> None:
        self.script = script
        self.healthy = healthy
        self.calls: list[GenerateCall] = []
        self.closed: list[str] = []
        # set: the script halts before its last item until somebody sets it
        self.gate: asyncio.Event | None = None

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        self.calls.append(call)
        try:
            for item in self.script:
                if self.gate is not None and item is self.script[-1]:
                    await self.gate.wait()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed.append(call.request_id)

    async def cluster(self) -> ClusterState:
        state = AcceptanceState(live_for_s=10.0)
        report = ReplicaReport(
            incarnation=Incarnation("r1", 1000.0, "life-1"),
            sequence=4,
            model=MODEL,
            max_model_len=128,
            healthy=self.healthy,
            acceptance=AcceptanceTable(["context"]),
            stats=EngineStats(num_requests_running=2, kv_slots_used=5, kv_slots_total=10),
        )
        state.observe(report, 0.0)
        return ClusterState(state.view(0.0), remembered=True)

    async def steps(self, count: int) -> list[ReplicaSteps]:
        sequence = SequenceRecord("a", prefill_rows=3, tree_nodes=4, accepted=1, committed=2)
        return [ReplicaSteps("r1", (StepRecord(1, 7, (sequence,), 0.1, 0.2, 0.3),) * min(count, 2))]


def client_of(backend: ScriptedBackend) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(build_http_app(backend, MODEL, limits=LIMITS), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://goose")


def request(backend: ScriptedBackend, method: str, path: str, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with client_of(backend) as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


def post(backend: ScriptedBackend, path: str, body: dict[str, Any]) -> httpx.Response:
    return request(backend, "POST", path, json=body)


def events_of(response: httpx.Response) -> list[Any]:
    """The data of every event but the closing [DONE], which must be there."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


class TestChat:
    def test_whole_answer(self) -> None:
        answer = post(ScriptedBackend(), "/v1/chat/completions", CHAT).json()
        assert answer["object"] == "chat.completion"
        assert answer["model"] == MODEL
        assert answer["id"].startswith("chatcmpl-")
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Héllo"}
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
        assert answer["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        assert "goose" not in answer
        assert "token_ids" not in choice

    def test_goose_stats_and_token_ids_on_request(self) -> None:
        body = {**CHAT, "return_goose_stats": True, "return_token_ids": True}
        answer = post(ScriptedBackend(), "/v1/chat/completions", body).json()
        assert answer["goose"] == {
            "steps": 2,
            "drafted": 6,
            "accepted": 3,
            "committed": 5,
            "tau": 2.5,
            "sources": {"context": {"attempted": 4, "accepted": 3}},
        }
        assert answer["choices"][0]["token_ids"] == [1, 2, 3, 4, 5]
        assert answer["prompt_token_ids"] == [7, 8, 9]

    def test_stream_is_a_role_chunk_and_one_chunk_a_step(self) -> None:
        events = events_of(post(ScriptedBackend(), "/v1/chat/completions", {**CHAT, "stream": True}))
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hé"}, {"content": "llo"}]
        assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "stop"]
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert len({event["id"] for event in events}) == 1
        assert not any("usage" in event for event in events)

    def test_stream_with_everything(self) -> None:
        body = {
            **CHAT,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "return_goose_stats": True,
        }
        events = events_of(post(ScriptedBackend(), "/v1/chat/completions", body))
        assert events[0]["prompt_token_ids"] == [7, 8, 9]
        assert [event["choices"][0].get("token_ids") for event in events[:-1]] == [None, [1, 2], [3, 4, 5]]
        assert [event["usage"] for event in events[:-1]] == [None] * 3
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 5
        assert events[2]["goose"]["tau"] == 2.5

    def test_steps_without_text_are_streamed_only_for_their_ids(self) -> None:
        script = [
            Delta(text="", token_ids=(1,), prompt=PromptInfo(1)),
            Delta(text="x", token_ids=(2,), finish_reason="length", stats=STATS),
        ]
        plain = events_of(post(ScriptedBackend(script), "/v1/chat/completions", {**CHAT, "stream": True}))
        with_ids = events_of(
            post(ScriptedBackend(script), "/v1/chat/completions", {**CHAT, "stream": True, "return_token_ids": True})
        )
        assert len(plain) == 2
        assert [event["choices"][0].get("token_ids") for event in with_ids] == [None, [1], [2]]


class TestCompletion:
    def test_prompts_are_answered_in_order(self) -> None:
        backend = ScriptedBackend()
        body = {"model": MODEL, "prompt": ["a", "b"], "return_token_ids": True, "return_goose_stats": True}
        answer = post(backend, "/v1/completions", body).json()
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "Héllo"), (1, "Héllo")]
        assert answer["choices"][1]["prompt_token_ids"] == [7, 8, 9]
        assert answer["usage"] == {
            "prompt_tokens": 6,
            "completion_tokens": 10,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        assert answer["goose"]["steps"] == 4
        assert [call.prompt for call in backend.calls] == ["a", "b"]

    def test_streams_of_several_prompts_are_told_apart_by_index(self) -> None:
        body = {"model": MODEL, "prompt": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}}
        events = events_of(post(ScriptedBackend(), "/v1/completions", body))
        texts = {0: "", 1: ""}
        for event in events[:-1]:
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert texts == {0: "Héllo", 1: "Héllo"}
        assert events[-1]["usage"]["total_tokens"] == 16

    def test_many_prompts_wait_for_one_another(self) -> None:
        """128 at once are more than the limits of an idle replica take."""

        class Crowded(ScriptedBackend):
            under_way = 0

            async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
                if self.under_way == 2:
                    raise OverloadedError("full")
                self.under_way += 1
                async for delta in super().generate(call):
                    await asyncio.sleep(0)
                    yield delta
                self.under_way -= 1

        answer = post(Crowded(), "/v1/completions", {"model": MODEL, "prompt": [f"{i}" for i in range(128)]})
        assert answer.status_code == 200
        assert [choice["text"] for choice in answer.json()["choices"]] == ["Héllo"] * 128

    def test_ids_that_no_replica_can_hold_are_not_sent_to_one(self) -> None:
        backend = ScriptedBackend()
        response = post(backend, "/v1/completions", {"model": MODEL, "prompt": [[5], [5] * 1001], "n": 64})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
        assert not backend.calls
        assert post(backend, "/v1/completions", {"model": MODEL, "prompt": [5] * 1000}).status_code == 200

    def test_one_failure_ends_all_prompts_of_the_request(self) -> None:
        class FailsSecond(ScriptedBackend):
            async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
                if call.prompt == "b":
                    raise InvalidRequestError("b is bad", "prompt")
                async for delta in super().generate(call):
                    yield delta

        backend = FailsSecond()
        backend.gate = asyncio.Event()  # the first prompt alone would never end
        response = post(backend, "/v1/completions", {"model": MODEL, "prompt": ["a", "b"]})
        assert response.status_code == 400
        assert len(backend.closed) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "status", "kind", "headers"),
        [
            (InvalidRequestError("no", "prompt", "c"), 400, "invalid_request_error", {}),
            (OverloadedError("full", 1.2), 429, "rate_limit_error", {"retry-after": "2"}),
            (EngineDeadError("dead"), 503, "server_error", {"retry-after": "1"}),
            (ZeroDivisionError("secret"), 500, "server_error", {}),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_first_token(
        self, error: Exception, status: int, kind: str, headers: dict[str, str], stream: bool
    ) -> None:
        backend = ScriptedBackend([error])
        response = post(backend, "/v1/chat/completions", {**CHAT, "stream": stream})
        assert response.status_code == status
        assert response.json()["error"]["type"] == kind
        assert headers.items() <= dict(response.headers).items()
        assert "secret" not in response.text
        assert len(backend.closed) == 1

    def test_in_mid_stream_it_becomes_an_event(self) -> None:
        script = [SCRIPT[0], EngineDeadError("the engine died")]
        events = events_of(post(ScriptedBackend(script), "/v1/chat/completions", {**CHAT, "stream": True}))
        assert events[-1]["error"]["message"] == "the engine died"
        assert events[-2]["choices"][0]["delta"]["content"] == "Hé"

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    def test_an_unknown_model_is_not_found(self, path: str) -> None:
        body = {**CHAT, "model": "gpt-9"} if "chat" in path else {"model": "gpt-9", "prompt": "x"}
        response = post(ScriptedBackend(), path, body)
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert MODEL in error["message"]

    def test_a_wrong_field_is_named_in_the_body(self) -> None:
        response = post(ScriptedBackend(), "/v1/chat/completions", {**CHAT, "temperature": -1})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "temperature"

    def test_a_wrong_query_parameter_is_named(self) -> None:
        response = request(ScriptedBackend(), "GET", "/v1/goose/steps?last=0")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "last")

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)]
    )
    def test_unknown_paths_and_methods_have_the_same_body(self, method: str, path: str, status: int) -> None:
        response = request(ScriptedBackend(), method, path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


class TestBody:
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    def test_a_larger_one_than_the_limit_is_refused(self, path: str) -> None:
        backend = ScriptedBackend()
        response = request(backend, "POST", path, content=b"[" * (MAX_BODY_BYTES + 1), headers=JSON)
        assert response.status_code == 413
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
        assert str(MAX_BODY_BYTES) in error["message"]

    def test_one_without_a_length_is_refused_while_it_is_read(self) -> None:
        """The client would send for ever: it is asked for no more than the limit, and a chunk."""
        num_chunks = 0

        async def endless() -> AsyncGenerator[bytes]:
            nonlocal num_chunks
            while True:
                num_chunks += 1
                yield b" " * 10_000

        response = request(ScriptedBackend(), "POST", "/v1/completions", content=endless(), headers=JSON)
        assert response.status_code == 413
        assert num_chunks == MAX_BODY_BYTES // 10_000 + 1

    def test_one_of_the_limit_is_read(self) -> None:
        body = json.dumps(CHAT).encode().ljust(MAX_BODY_BYTES)
        assert request(ScriptedBackend(), "POST", "/v1/chat/completions", content=body, headers=JSON).is_success

    def test_a_client_that_leaves_before_its_end_is_no_fault(self) -> None:
        async def scenario() -> int:
            app = build_http_app(ScriptedBackend(), MODEL, limits=LIMITS)
            messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
            sent: list[Any] = []

            async def receive() -> Any:
                return next(messages)

            async def send(message: Any) -> None:
                sent.append(message)

            await app(_post_scope("/v1/chat/completions"), receive, send)
            return int(sent[0]["status"])

        assert asyncio.run(scenario()) == 499


class TestCluster:
    @pytest.mark.parametrize("path", ["/health", "/v1/models", f"/v1/models/{MODEL}", "/metrics"])
    def test_what_can_be_got_has_a_head(self, path: str) -> None:
        assert request(ScriptedBackend(), "HEAD", path).status_code == 200

    def test_models(self) -> None:
        listed = request(ScriptedBackend(), "GET", "/v1/models").json()["data"]
        assert [(model["id"], model["max_model_len"], model["created"]) for model in listed] == [(MODEL, 128, 1000)]
        assert request(ScriptedBackend(), "GET", f"/v1/models/{MODEL}").json() == listed[0]
        assert request(ScriptedBackend(), "GET", "/v1/models/other").status_code == 404

    def test_a_model_that_nobody_can_run_is_not_listed_and_not_healthy(self) -> None:
        backend = ScriptedBackend(healthy=False)
        assert request(backend, "GET", "/v1/models").status_code == 503
        assert request(backend, "GET", "/health").status_code == 503
        assert request(ScriptedBackend(), "GET", "/health").json()["status"] == "ok"

    def test_metrics(self) -> None:
        response = request(ScriptedBackend(), "GET", "/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'goose_num_requests_running{model_name="tiny",replica="r1"} 2.0' in response.text

    def test_steps(self) -> None:
        (replica,) = request(ScriptedBackend(), "GET", "/v1/goose/steps?last=1").json()["replicas"]
        (step,) = replica["steps"]
        assert step["rows"] == sum(part["prefill_rows"] + part["tree_nodes"] for part in step["sequences"])

    def test_acceptance(self) -> None:
        answer = request(ScriptedBackend(), "GET", "/v1/goose/acceptance").json()
        assert answer["remembered"]
        assert answer["replicas"][0]["incarnation"] == "life-1"
        assert answer["sources"]["context"]["attempted"] == 0


async def _hang_up(app: FastAPI, path: str, body: dict[str, Any]) -> None:
    """One POST whose client disconnects at the first text."""
    sent, hang_up = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if "Hé".encode() in message.get("body", b""):
            hang_up.set()

    await app(_post_scope(path), receive, send)


def _post_scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("goose", 80),
        "client": ("client", 1),
        "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", {"model": MODEL, "prompt": ["a", "b"]})],
)
def test_a_client_that_hangs_up_in_mid_stream_ends_its_calls(path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        backend = ScriptedBackend()
        backend.gate = asyncio.Event()  # never set: without the hang-up the stream would not end
        hanging_up = _hang_up(
            build_http_app(backend, MODEL, limits=LIMITS),
            path,
            {**body, "stream": True},
        )
        await asyncio.wait_for(hanging_up, timeout=10)
        assert len(backend.closed) == len(backend.calls)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_request_ends_its_call(stream: bool) -> None:
    async def scenario() -> None:
        backend = ScriptedBackend(SCRIPT[1:])
        backend.gate = asyncio.Event()
        async with client_of(backend) as client:
            sending = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "stream": stream}))
            while not backend.calls:
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])
        assert len(backend.closed) == 1

    asyncio.run(scenario())
