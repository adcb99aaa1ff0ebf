"""The real HTTP app over a real engine loop, in this process: all of the server but Serve."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from goose_ray.api.backend import ClusterState, ReplicaSteps
from goose_ray.api.calls import DecodeCall, Delta, EncodeCall, Encoded, GenerateCall
from goose_ray.api.engine_calls import EngineCalls
from goose_ray.api.http_app import HttpLimits, build_http_app
from goose_ray.engine.engine import Engine
from goose_ray.engine.loop import EngineLoop
from goose_ray.errors import EngineDeadError
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.dashboard.live import ReplicaLive
from goose_ray.telemetry.replica_telemetry import ReplicaTelemetry
from goose_ray.telemetry.report import Incarnation, ReplicaReport
from goose_ray.telemetry.tracing import Tracing

__all__ = ["MODEL", "EngineApp", "Http", "chunks_of"]

MODEL = "tiny"
# A test that hangs is a failure, not a wait.
_PATIENCE_S = 120.0

T = TypeVar("T")


class _EngineBackend:
    """As one replica and the aggregator would answer."""

    def __init__(self, loop: EngineLoop, tracing: Tracing, nodes_of_auto: int | None) -> None:
        self._loop = loop
        self._tracing = tracing
        self._calls = EngineCalls(loop, tracing=tracing, nodes_of_auto=nodes_of_auto)
        self._incarnation = Incarnation("r1", 1000.0, "life-1")
        self._telemetry = ReplicaTelemetry(loop, self._incarnation, model=MODEL)

    def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        return self._calls.answer(replace(call, trace=self._tracing.headers()))

    async def encode(self, call: EncodeCall) -> Encoded:
        return await self._calls.encode(call)

    async def decode(self, call: DecodeCall) -> str:
        return await self._calls.decode(call)

    async def cluster(self) -> ClusterState:
        state = AcceptanceState(live_for_s=10.0)
        state.observe(
            ReplicaReport(
                incarnation=self._incarnation,
                sequence=1,
                model=MODEL,
                max_model_len=self._loop.max_model_len,
                healthy=self._is_healthy(),
                acceptance=self._loop.acceptance(),
                stats=self._loop.stats(),
            ),
            0.0,
        )
        return ClusterState(state.view(0.0), remembered=True)

    async def steps(self, count: int) -> list[ReplicaSteps]:
        return [ReplicaSteps("r1", self._loop.step_trace(count))]

    async def live(self, since: float) -> list[ReplicaLive]:
        return [self._telemetry.live(since)]

    def stop(self) -> None:
        self._calls.stop()

    def _is_healthy(self) -> bool:
        try:
            self._loop.check_health()
        except EngineDeadError:
            return False
        return True


class Http(httpx.AsyncClient):
    """A client of the app."""

    async def whole(self, path: str, **body: Any) -> Any:
        response = await self.post(path, json={"model": MODEL, **body})
        assert response.status_code == 200, response.text
        return response.json()

    async def streamed(self, path: str, **body: Any) -> list[Any]:
        """The events but [DONE], each checked to be UTF-8 by itself."""
        response = await self.post(path, json={"model": MODEL, "stream": True, **body})
        assert response.status_code == 200, response.text
        return chunks_of(response.content)

    async def metrics(self) -> dict[str, float]:
        lines = (await self.get("/metrics")).text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


class EngineApp:
    """To be used within `serving`."""

    def __init__(self, engine: Engine, tracing: Tracing | None = None, *, nodes_of_auto: int | None = None) -> None:
        self.engine = engine
        self.loop = EngineLoop(engine)
        self._backend = _EngineBackend(self.loop, tracing or Tracing(), nodes_of_auto)
        limits = HttpLimits(
            max_body_bytes=200_000,
            body_timeout_s=60,
            max_calls_at_once=8,
            kv_cache_tokens=engine.spec.num_slots,
            max_budget=64,
        )
        self._app = build_http_app(self._backend, MODEL, limits=limits, tracing=tracing)

    @classmethod
    @contextmanager
    def serving(
        cls, engine: Engine, tracing: Tracing | None = None, *, nodes_of_auto: int | None = None
    ) -> "Iterator[EngineApp]":
        app = cls(engine, tracing, nodes_of_auto=nodes_of_auto)
        app.loop.start()
        try:
            yield app
        finally:
            app.loop.stop()
            app._backend.stop()

    def run(self, scenario: Callable[[Http], Awaitable[T]]) -> T:
        async def main() -> T:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with Http(transport=transport, base_url="http://goose", timeout=_PATIENCE_S) as http:
                return await asyncio.wait_for(scenario(http), _PATIENCE_S)

        return asyncio.run(main())

    def whole(self, path: str, **body: Any) -> Any:
        return self.run(lambda http: http.whole(path, **body))

    def streamed(self, path: str, **body: Any) -> list[Any]:
        return self.run(lambda http: http.streamed(path, **body))


def chunks_of(content: bytes) -> list[Any]:
    events = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event]
    assert events[-1] == b"[DONE]"
    return [json.loads(event.decode("utf-8", "strict")) for event in events[:-1]]
