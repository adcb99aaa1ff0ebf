"""What the tests of EngineLoop share: a gate that stands for a long forward, and callers that never wait for ever."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from engine_helpers import Reply, ScriptedSpeculator, make_engine, plain_reply
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose_ray.engine.engine import Engine
from goose_ray.engine.loop import EngineLoop
from goose_ray.engine.request import GenerationRequest, RequestOutput
from goose_ray.engine.step import StepBatch

MODEL = looping_model()
# A test that hangs is a failure, not a wait.
PATIENCE_S = 60.0

T = TypeVar("T")


class Gate:
    """Every forward comes by: while the gate is closed, it is held until it is let pass."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = False
        self._passes = 0
        self._holds = False
        # who took part in each forward
        self.steps: list[list[str]] = []

    def __call__(self, batch: StepBatch) -> None:
        with self._changed:
            self.steps.append([step.request_id for step in batch.sequences])
            self._holds = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._is_open or self._passes, PATIENCE_S), "never let pass"
            self._passes = max(0, self._passes - 1)
            self._holds = False

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def _next_step(self, passes: int) -> None:
        with self._changed:
            if passes:
                self._passes, self._holds = passes, False
                self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._holds, PATIENCE_S), "no step came"

    async def holds(self) -> None:
        """Waits until a forward is held; what was posted before is then in the engine's inbox at least."""
        await asyncio.to_thread(self._next_step, 0)

    async def pass_until(self, future: "asyncio.Future[RequestOutput]") -> RequestOutput:
        """Lets one forward after another pass until the future is done; the next one is held then."""
        await self.holds()
        while not future.done():
            await asyncio.to_thread(self._next_step, 1)
            # Its callbacks were scheduled before the forward that is held now.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return future.result()


@contextmanager
def running(engine: Engine, gate: Gate | None = None) -> Iterator[EngineLoop]:
    loop = EngineLoop(engine)
    loop.start()
    try:
        yield loop
    finally:
        if gate is not None:
            gate.open()
        loop.stop()


def slow_engine(gate: Gate, *, max_running_requests: int = 8, max_waiting_requests: int = 8) -> Engine:
    """A token a step."""
    return make_engine(
        MODEL,
        ScriptedSpeculator(MODEL, length=0),
        runner=FakeRunner(MODEL, on_step=gate),
        max_running_requests=max_running_requests,
        max_waiting_requests=max_waiting_requests,
    )


def run_here(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, PATIENCE_S))


def first_of(outputs: AsyncGenerator[RequestOutput]) -> "asyncio.Future[RequestOutput]":
    return asyncio.ensure_future(anext(outputs))


async def collect(outputs: AsyncGenerator[RequestOutput]) -> Reply:
    reply = Reply()
    async for output in outputs:
        reply.add(output)
    return reply


def expected(request: GenerationRequest) -> tuple[str, list[int], str, str | int | None]:
    return plain_reply(MODEL, request, FakeTokenizer(specials=(EOS,)))
