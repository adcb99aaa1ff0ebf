"""Lost replicas, as the HTTP side hears of them: who goes on elsewhere, with what, and who is given up."""

import asyncio
import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    OutOfMemoryError,
    OwnerDiedError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.serve.exceptions import RequestCancelledError

from goose_ray.api.calls import Delta, Failure, GenerateCall, PromptInfo
from goose_ray.api.serve_backend import ServeBackend
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import EngineDeadError, GooseRayError, OverloadedError
from goose_ray.telemetry.acceptance_state import AcceptanceState, ClusterView

CALL = GenerateCall(request_id="r", prompt="a", sampling=SamplingParams(max_tokens=9), clip_max_tokens=False)
END = Delta(text="", token_ids=(), finish_reason="length")

Run = list[Delta | Failure | Exception]


class Handle:
    """A deployment's, of which each call gives what the next of `runs` says."""

    app_name, deployment_name = "goose", "GooseServer"

    def __init__(self, *runs: Run) -> None:
        self._runs = iter(runs)
        self.calls: list[GenerateCall] = []
        self.num_cancelled = 0

    def options(self, **_: Any) -> "Handle":
        return self

    def remote(self, call: GenerateCall) -> "Response":
        self.calls.append(call)
        return Response(self, next(self._runs))


class Response:
    def __init__(self, handle: Handle, run: Run) -> None:
        self._handle = handle
        self._items = iter(run)

    def __aiter__(self) -> "Response":
        return self

    async def __anext__(self) -> Delta | Failure:
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            return item
        raise StopAsyncIteration

    def cancel(self) -> None:
        self._handle.num_cancelled += 1


def answer_of(handle: Handle) -> str:
    async def read() -> str:
        return "".join([delta.text async for delta in ServeBackend(handle).generate(CALL)])

    return asyncio.run(read())


class Cluster(Handle):
    """Of replicas that are asked for the aggregator: `aggregator` None is one that they do not know yet."""

    aggregator: Any = None

    def broadcast(self, method: str) -> "Cluster":
        self.method = method
        return self

    async def results_async(self, **_: Any) -> list[Any]:
        return [] if self.method == "report" or self.aggregator is None else [self.aggregator]


class Aggregator:
    """Answers every call until `is_gone`."""

    is_gone = False

    @property
    def exchange(self) -> "Aggregator":
        return self

    async def remote(self, reports: object) -> ClusterView:
        if self.is_gone:
            raise ActorDiedError
        return AcceptanceState(live_for_s=1.0).view(0.0)


class Waiting(Handle):
    """Its answers never begin; one that is cancelled ends as Serve's do."""

    def remote(self, call: GenerateCall) -> "Waiting":  # type: ignore[override]
        return self

    def __aiter__(self) -> "Waiting":
        return self

    async def __anext__(self) -> Delta:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise RequestCancelledError("r") from None
        raise AssertionError("nobody ends it")

    def cancel(self) -> None:
        self.num_cancelled += 1


def test_who_hangs_up_before_the_answer_begins_leaves_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    handle = Waiting()

    async def hang_up() -> None:
        answer = asyncio.ensure_future(anext(ServeBackend(handle).generate(CALL)))
        await asyncio.wait({answer}, timeout=0)
        answer.cancel()
        await asyncio.wait({answer})

    asyncio.run(hang_up())
    # asyncio tells of an error that nobody has heard of when the task goes
    gc.collect()
    assert handle.num_cancelled == 1
    assert not caplog.text


def test_an_aggregator_that_is_not_there_yet_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """One that has been there is."""
    caplog.set_level(logging.INFO, "goose_ray.api.serve_backend")
    handle, aggregator = Cluster(), Aggregator()

    async def ask() -> None:
        backend = ServeBackend(handle)
        assert not (await backend.cluster()).remembered
        handle.aggregator = aggregator
        assert (await backend.cluster()).remembered
        assert {record.levelname for record in caplog.records} == {"INFO"}
        aggregator.is_gone = True
        for _ in range(2):
            assert not (await backend.cluster()).remembered

    asyncio.run(ask())
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]


def said(*token_ids: int) -> Delta:
    return Delta(text="".join(map(str, token_ids)), token_ids=token_ids, prompt=PromptInfo(1))


def test_an_answer_goes_on_as_long_as_each_replica_brings_it_further() -> None:
    """As when an update of the deployment takes one replica after the other from under it."""
    handle = Handle(
        [said(1), ActorDiedError()],
        [said(1, 2), ActorDiedError()],
        [said(1, 2, 3), Failure(EngineDeadError("dead"))],
        [said(1, 2, 3), said(4), END],
    )
    assert answer_of(handle) == "1234"
    assert [call.committed_ids for call in handle.calls] == [(), (1,), (1, 2), (1, 2, 3)]


@pytest.mark.parametrize(
    "lost",
    [
        ActorUnavailableError("away", None),
        NodeDiedError("gone"),
        OutOfMemoryError("killed by Ray's memory monitor"),
        OwnerDiedError("00", None, ""),
        WorkerCrashedError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_however_ray_says_that_a_replica_is_gone_another_one_goes_on(lost: Exception) -> None:
    assert answer_of(Handle([said(1), lost], [said(1), said(2), END])) == "12"


def test_an_exception_of_the_replica_is_no_loss_of_it() -> None:
    handle = Handle([RayTaskError("generate", "a traceback", ZeroDivisionError())], [said(1), END])
    with pytest.raises(GooseRayError, match="the replica failed"):
        answer_of(handle)
    assert len(handle.calls) == 1


@pytest.mark.parametrize("first", [[ActorDiedError()], [said(1), ActorDiedError()]])
def test_a_request_that_kills_two_replicas_at_one_place_is_given_up(first: Run) -> None:
    handle = Handle(first, [ActorDiedError()], [said(1), END])
    with pytest.raises(EngineDeadError):
        answer_of(handle)
    assert len(handle.calls) == 2


def test_there_is_an_end_to_it() -> None:
    handle = Handle(*([said(*range(length + 1)), ActorDiedError()] for length in range(99)))
    with pytest.raises(EngineDeadError):
        answer_of(handle)
    assert len(handle.calls) == 8


def test_a_replica_lost_behind_the_last_word_is_not_replaced() -> None:
    handle = Handle([said(1), END, ActorDiedError()])
    assert answer_of(handle) == "1"
    assert len(handle.calls) == 1


def test_what_the_replica_refuses_is_not_asked_again() -> None:
    handle = Handle([Failure(OverloadedError("full"))])
    with pytest.raises(OverloadedError):
        answer_of(handle)


def test_who_hangs_up_cancels_the_call() -> None:
    handle = Handle([said(1), said(2), END])

    async def read_one() -> None:
        deltas = ServeBackend(handle).generate(CALL)
        await anext(deltas)
        await deltas.aclose()

    asyncio.run(read_one())
    assert handle.num_cancelled == 1


def test_who_waits_for_a_replica_that_will_not_come_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve.status` stands for a controller that says so."""

    class Waiting(Response):
        async def __anext__(self) -> Delta | Failure:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    handle = Handle()
    monkeypatch.setattr(handle, "remote", lambda call: Waiting(handle, []))
    monkeypatch.setattr("goose_ray.api.serve_backend._LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("goose_ray.api.takedown._ASK_EVERY_S", 0.0)
    answers: Iterator[bool | Exception] = iter([ConnectionError("no controller"), False, True])

    def ask(_: object) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("goose_ray.api.takedown.Takedown._ask", ask)
    with pytest.raises(EngineDeadError, match="taken down"):
        answer_of(handle)
    assert handle.num_cancelled == 1
