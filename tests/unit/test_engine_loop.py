"""EngineLoop: the thread, and callers on event loops of their own. A gate in the runner stands for a long forward."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

import pytest
from engine_helpers import Reply, ScriptedSpeculator, make_engine, make_request, plain_reply
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.speculator import Speculator
from goose_ray.engine.engine import Engine
from goose_ray.engine.loop import EngineLoop
from goose_ray.engine.request import GenerationRequest, RequestOutput
from goose_ray.engine.step import StepBatch
from goose_ray.errors import EngineDeadError, InvalidRequestError, OverloadedError

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


def test_concurrent_requests_each_get_their_own_reply() -> None:
    async def main(loop: EngineLoop, names: str) -> None:
        requests = [make_request(name, (1, 2, ord(name) % 12), max_tokens=30) for name in names]
        replies = await asyncio.gather(*(collect(loop.generate(request)) for request in requests))
        for request, reply in zip(requests, replies, strict=True):
            assert reply.visible == expected(request)

    with running(make_engine(MODEL, Speculator(policy="goose"))) as loop:
        # Two event loops in two threads.
        errors: list[BaseException] = []

        def other() -> None:
            try:
                run_here(main(loop, "ABCDEF"))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        run_here(main(loop, "abcdef"))
        thread.join(PATIENCE_S)
        assert not errors
        assert loop.stats().kv_slots_used == 0
        assert loop.stats().finished_by_reason == {"length": 12}


def test_one_item_a_step_with_all_its_tokens() -> None:
    async def main(loop: EngineLoop) -> list[int]:
        return [len(output.token_ids) async for output in loop.generate(make_request(max_tokens=20))]

    with running(make_engine(MODEL)) as loop:
        assert run_here(main(loop)) == [9, 9, 2]
        assert [record.rows for record in loop.step_trace()] == [11, 9, 2]


def test_whoever_has_the_last_token_finds_it_counted() -> None:
    async def main(loop: EngineLoop) -> None:
        async for output in loop.generate(make_request(max_tokens=25)):
            if output.finish_reason:
                assert loop.stats().generation_tokens == 25
                assert loop.stats().num_requests_running == 0
                assert sum(accepted for _, accepted in loop.acceptance().totals().values()) == output.stats.accepted

    with running(make_engine(MODEL, Speculator(policy="chain"))) as loop:
        run_here(main(loop))


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_caller_who_leaves_takes_its_sequence_out_before_the_next_step(how: str) -> None:
    gate = Gate()

    async def main(loop: EngineLoop) -> None:
        stays = asyncio.ensure_future(collect(loop.generate(make_request("stays", (4, 5), max_tokens=20))))
        leaves = loop.generate(make_request("leaves", max_tokens=200))
        await gate.pass_until(first_of(leaves))
        # A forward is under way and the event loop is not.
        if how == "closed":
            await leaves.aclose()
        else:
            task = asyncio.ensure_future(collect(leaves))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert "leaves" in gate.steps[-1]
        steps_before = len(gate.steps)
        gate.open()
        assert (await stays).token_ids == expected(make_request("stays", (4, 5), max_tokens=20))[1]
        later = gate.steps[steps_before:]
        assert later
        assert all("leaves" not in step for step in later)
        assert loop.stats().kv_slots_used == 0
        assert loop.stats().finished_by_reason == {"length": 1, "abort": 1}

    with running(slow_engine(gate), gate) as loop:
        run_here(main(loop))


def test_an_id_used_again_at_once_gets_nothing_of_the_old_request() -> None:
    gate = Gate()

    async def main(loop: EngineLoop) -> None:
        old = loop.generate(make_request("same", (1, 2, 3), max_tokens=200))
        await gate.pass_until(first_of(old))
        # The step under way will still bring a token of the old request.
        await old.aclose()
        request = make_request("same", (7, 8), max_tokens=12)
        new = asyncio.ensure_future(collect(loop.generate(request)))
        await asyncio.sleep(0)
        gate.open()
        assert (await new).visible == expected(request)

    with running(slow_engine(gate), gate) as loop:
        run_here(main(loop))


def test_a_refused_duplicate_leaves_the_first_alone() -> None:
    gate = Gate()

    async def main(loop: EngineLoop) -> None:
        request = make_request("same", max_tokens=12)
        first = asyncio.ensure_future(collect(loop.generate(request)))
        await gate.holds()
        async with aclosing(loop.generate(make_request("same", (7, 8)))) as second:
            refused = first_of(second)
            await asyncio.sleep(0)
            gate.open()
            with pytest.raises(InvalidRequestError, match="'same' is in use"):
                await refused
        assert (await first).visible == expected(request)

    with running(slow_engine(gate), gate) as loop:
        run_here(main(loop))


def test_a_bad_request_is_refused_and_the_next_is_served() -> None:
    async def main(loop: EngineLoop) -> None:
        with pytest.raises(InvalidRequestError, match="at least one token"):
            await collect(loop.generate(make_request("bad", ())))
        assert (await collect(loop.generate(make_request("good")))).finish_reason == "length"
        loop.check_health()

    with running(make_engine(MODEL)) as loop:
        run_here(main(loop))


def test_too_many_are_refused() -> None:
    gate = Gate()

    async def main(loop: EngineLoop) -> None:
        held = asyncio.ensure_future(collect(loop.generate(make_request("a", max_tokens=5))))
        await gate.holds()
        more = [asyncio.ensure_future(collect(loop.generate(make_request(name, max_tokens=5)))) for name in "bc"]
        await asyncio.sleep(0)
        gate.open()
        results = await asyncio.gather(held, *more, return_exceptions=True)
        assert [type(result) for result in results] == [Reply, Reply, OverloadedError]

    with running(slow_engine(gate, max_running_requests=1, max_waiting_requests=1), gate) as loop:
        run_here(main(loop))


def test_an_event_loop_that_is_gone_cancels_its_requests() -> None:
    gate = Gate()

    with running(slow_engine(gate), gate) as loop:
        outputs = loop.generate(make_request("orphan", max_tokens=240))

        async def leave() -> None:
            await gate.pass_until(first_of(outputs))

        # Not asyncio.run, which would close the generator properly.
        own = asyncio.new_event_loop()
        own.run_until_complete(leave())
        own.run_until_complete(own.shutdown_default_executor())
        own.close()
        gate.open()
        reply = run_here(collect(loop.generate(make_request("next", max_tokens=240))))
        assert reply.finish_reason == "length"
        assert loop.stats().finished_by_reason == {"length": 1, "abort": 1}
        assert gate.steps[-1] == ["next"]


def test_a_dead_engine_is_told_to_everyone() -> None:
    def fail(batch: StepBatch) -> None:
        if batch.step_id == 3:
            raise MemoryError("out of memory")

    async def main(loop: EngineLoop) -> None:
        requests = [make_request(name, max_tokens=100) for name in "abc"]
        results = await asyncio.gather(*(collect(loop.generate(r)) for r in requests), return_exceptions=True)
        assert [type(result) for result in results] == [EngineDeadError] * 3
        assert "out of memory" in str(results[0])
        with pytest.raises(EngineDeadError):
            await collect(loop.generate(make_request("late")))

    with running(make_engine(MODEL, runner=FakeRunner(MODEL, on_step=fail))) as loop:
        run_here(main(loop))
        with pytest.raises(EngineDeadError, match="out of memory"):
            loop.check_health()


def test_a_stalled_step_is_unhealthy_until_it_ends() -> None:
    gate = Gate()
    now = 1000.0
    loop = EngineLoop(slow_engine(gate), stall_timeout_s=300.0, clock=lambda: now)
    loop.start()

    async def main() -> None:
        nonlocal now
        reply = asyncio.ensure_future(collect(loop.generate(make_request())))
        await gate.holds()
        now += 299.0
        loop.check_health()
        now += 2.0
        with pytest.raises(EngineDeadError, match="more than 300"):
            loop.check_health()
        gate.open()
        await reply
        loop.check_health()

    try:
        run_here(main())
    finally:
        gate.open()
        loop.stop()


def test_a_dead_runner_is_unhealthy() -> None:
    runner = FakeRunner(MODEL)
    with running(make_engine(MODEL, runner=runner)) as loop:
        loop.check_health()
        runner.failure = EngineDeadError("rank 1 is gone")
        with pytest.raises(EngineDeadError, match="rank 1"):
            loop.check_health()


def wait_until_stopping(loop: EngineLoop) -> None:
    with loop._wake:
        assert loop._wake.wait_for(lambda: loop._stopping, PATIENCE_S)


def test_stopping_ends_what_runs_and_what_waits_with_abort() -> None:
    gate = Gate()

    async def main(loop: EngineLoop) -> None:
        names = [asyncio.ensure_future(collect(loop.generate(make_request(n, max_tokens=200)))) for n in "ab"]
        await gate.holds()
        late = asyncio.ensure_future(collect(loop.generate(make_request("late", max_tokens=200))))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(asyncio.to_thread(loop.stop))
        await asyncio.to_thread(wait_until_stopping, loop)
        gate.open()
        await stopping
        assert [(await name).finish_reason for name in (*names, late)] == ["abort"] * 3

    runner = FakeRunner(MODEL, on_step=gate)
    engine = make_engine(MODEL, ScriptedSpeculator(MODEL, length=0), runner=runner, max_running_requests=1)
    with running(engine, gate) as loop:
        run_here(main(loop))
        assert loop.stats().kv_slots_used == 0
        assert loop.stats().num_requests_waiting == 0
    assert runner.is_shut_down


def test_start_and_stop_may_be_called_again_but_a_life_is_lived_once() -> None:
    loop = EngineLoop(make_engine(MODEL))
    with pytest.raises(EngineDeadError, match="not running"):
        loop.check_health()
    loop.start()
    loop.start()
    loop.check_health()
    assert run_here(collect(loop.generate(make_request()))).finish_reason == "length"
    loop.stop()
    loop.stop()
    with pytest.raises(EngineDeadError, match="not running"):
        loop.check_health()
    with pytest.raises(EngineDeadError, match="not running"):
        run_here(collect(loop.generate(make_request())))
    with pytest.raises(EngineDeadError, match="cannot be started again"):
        loop.start()
    assert "goose-engine" not in {thread.name for thread in threading.enumerate()}


def test_a_loop_that_was_never_started_can_be_stopped() -> None:
    EngineLoop(make_engine(MODEL)).stop()


def test_what_the_api_asks_of_it() -> None:
    engine = make_engine(MODEL, Speculator(), max_model_len=100)
    loop = EngineLoop(engine)
    assert loop.max_model_len == 100
    assert loop.spec.model_id == "fake"
    assert loop.policies == Speculator().policies
    assert loop.tokenizer is engine.tokenizer
