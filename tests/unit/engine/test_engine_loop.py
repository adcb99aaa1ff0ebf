"""EngineLoop and its callers: each gets its own reply, and leaves when it likes."""

import asyncio
import threading
from contextlib import aclosing

import pytest
from engine_helpers import Reply, make_engine, make_request
from engine_loops import MODEL, PATIENCE_S, Gate, collect, expected, first_of, run_here, running, slow_engine

from goose.speculator import Speculator
from goose_ray.engine.loop import EngineLoop
from goose_ray.errors import GooseRayError, InvalidRequestError, OverloadedError


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


def test_a_request_ended_from_outside_is_out_before_the_next_step_and_its_caller_is_told() -> None:
    gate = Gate()

    async def main(loop: EngineLoop) -> None:
        stays = asyncio.ensure_future(collect(loop.generate(make_request("stays", (4, 5), max_tokens=20))))
        ended = loop.generate(make_request("ended", max_tokens=200))
        await gate.pass_until(first_of(ended))
        loop.abort("ended", "nobody reads it")
        loop.abort("unknown", "nobody reads it")
        assert "ended" in gate.steps[-1]
        num_steps = len(gate.steps)
        gate.open()
        with pytest.raises(GooseRayError, match="nobody reads it"):
            async for _ in ended:
                pass
        assert (await stays).visible == expected(make_request("stays", (4, 5), max_tokens=20))
        assert not any("ended" in step for step in gate.steps[num_steps:])

    with running(slow_engine(gate), gate) as loop:
        run_here(main(loop))
        assert loop.stats().finished_by_reason == {"abort": 1, "length": 1}
        assert loop.stats().kv_slots_used == 0
