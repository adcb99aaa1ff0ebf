"""EngineLoop's life: start, stop, death, and what its health says."""

import asyncio
import threading

import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request
from engine_loops import MODEL, PATIENCE_S, Gate, collect, run_here, running, slow_engine
from fakes import FakeRunner

from goose.speculator import Speculator
from goose_ray.engine.loop import EngineLoop
from goose_ray.engine.step import StepBatch
from goose_ray.errors import EngineDeadError


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
