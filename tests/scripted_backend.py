"""An HTTP app over a scripted backend, and how tests talk to it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx

from goose.calibration import AcceptanceTable
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.backend import ClusterState, ReplicaSteps
from goose_ray.api.calls import ChatPrompt, DecodeCall, Delta, EncodeCall, Encoded, GenerateCall, PromptInfo
from goose_ray.api.http_app import HttpLimits, build_http_app
from goose_ray.engine.request import SourceStats, SpeculationStats
from goose_ray.engine.stats import EngineStats
from goose_ray.engine.trace import SequenceRecord, StepRecord
from goose_ray.errors import InvalidRequestError
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.dashboard.live import ReplicaLive
from goose_ray.telemetry.report import Incarnation, ReplicaReport

MODEL = "tiny"
MAX_BODY_BYTES = 200_000
LIMITS = HttpLimits(
    max_body_bytes=MAX_BODY_BYTES, body_timeout_s=60, max_calls_at_once=2, kv_cache_tokens=1000, max_budget=64
)
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
        # what they tell the dashboard
        self.live_replicas: list[ReplicaLive] = []

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

    async def encode(self, call: EncodeCall) -> Encoded:
        """One token a character, chats by their contents."""
        text = call.prompt
        if isinstance(text, ChatPrompt):
            text = "".join(message["content"] for message in text.messages)
        return Encoded(tuple(map(ord, text)), 128, tuple(text) if call.with_strings else None)

    async def decode(self, call: DecodeCall) -> str:
        if max(call.token_ids, default=0) > 0x10FFFF:
            raise InvalidRequestError("no such token", "tokens")
        return "".join(map(chr, call.token_ids))

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

    async def live(self, since: float) -> list[ReplicaLive]:
        return self.live_replicas


def client_of(backend: ScriptedBackend, keys: KeyRing | None = None) -> httpx.AsyncClient:
    app = build_http_app(backend, MODEL, limits=LIMITS, keys=keys)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
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
