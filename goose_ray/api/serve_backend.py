"""The backend behind Ray Serve: handle calls to the replicas, and their failures turned into our exceptions.

With `goose_ray.api.takedown` the only part of the HTTP side that knows Ray.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from goose_ray.api.backend import ClusterState, ReplicaSteps
from goose_ray.api.calls import DecodeCall, Delta, EncodeCall, Encoded, Failure, GenerateCall
from goose_ray.api.failover import SentAnswer
from goose_ray.api.takedown import Takedown
from goose_ray.errors import EngineDeadError, GooseRayError, OverloadedError
from goose_ray.telemetry.acceptance_state import AcceptanceState, ClusterView
from goose_ray.telemetry.aggregator_link import AggregatorAwayError, AggregatorLink
from goose_ray.telemetry.dashboard.live import ReplicaLive
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.tracing import Tracing

__all__ = ["ServeBackend"]

logger = logging.getLogger(__name__)

# A request that is lost goes on on another replica, so often at most: an update of the deployment may take several from
# under a long answer.
_MOST_RUNS = 8
# Control calls wait for a free slot of the replica as requests do; a replica that is full is reported from memory.
_CONTROL_TIMEOUT_S = 1.0
_DEFAULT_RETRY_AFTER_S = 1.0
# What Ray says where a process or a machine is gone, or what it had answered with it. Its memory monitor's kills are no
# RayActorError.
_LOST = (NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError)
# A call that has waited for its first item for so long looks whether it waits in vain, and again after as long.
_LOOK_EVERY_S = 2.0


class _ReplicaLostError(EngineDeadError):
    """The replica, or its engine, died under the call."""


class ServeBackend:
    """`handle` is that of the deployment whose replicas are `goose_ray.replica.GooseServer`, `caller` the name of the
    actor that this is part of: replicas end its calls when it dies.
    """

    def __init__(
        self, handle: DeploymentHandle[Any], *, caller: str | None = None, tracing: Tracing | None = None
    ) -> None:
        self._handle = handle
        self._caller = caller
        self._tracing = tracing or Tracing()
        self._generate = handle.options(method_name="generate", stream=True)
        self._takedown = Takedown(handle.app_name, handle.deployment_name)
        # None: nobody has asked yet
        self._remembers: bool | None = None
        self._aggregator = AggregatorLink(self._find_aggregator, timeout_s=_CONTROL_TIMEOUT_S)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        call = replace(call, caller=self._caller, trace=self._tracing.headers())
        sent = SentAnswer()
        for run in range(1, _MOST_RUNS + 1):
            try:
                async with aclosing(self._run(sent.start_run(call))) as deltas:
                    async for delta in deltas:
                        if (fresh := sent.unsent(delta)) is not None:
                            yield fresh
                return
            except _ReplicaLostError:
                if sent.finished:
                    # between its last word and the end of the call
                    return
                # Else a request that kills its replica, as it would at the same place again, took them all down.
                if run == _MOST_RUNS or (run > 1 and not sent.advanced):
                    raise
                logger.warning("the replica of request %s died; another one goes on with it", call.request_id)

    async def _run(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        response = self._generate.remote(call)
        ended = False
        try:
            item = await self._first_item(response)
            while item is not None:
                if isinstance(item, Failure):
                    ended = True
                    raise _ReplicaLostError(str(item.error)) if isinstance(item.error, EngineDeadError) else item.error
                ended = item.finish_reason is not None
                yield item
                item = await anext(response, None)
            ended = True
        except (RayError, RayServeException) as error:
            ended = True
            raise _as_ours(error) from error
        finally:
            if not ended:
                # the client is gone: the replica stops at its next await
                response.cancel()

    async def _first_item(self, response: AsyncIterator[Delta | Failure]) -> Delta | Failure | None:
        """None if there is none. Raises EngineDeadError if no replica is left to give it, nor will be."""
        item = asyncio.ensure_future(anext(response, None))
        try:
            while not (await asyncio.wait({item}, timeout=_LOOK_EVERY_S))[0]:
                if await self._takedown.is_over():
                    raise EngineDeadError("the application is being taken down")
            return item.result()
        finally:
            item.cancel()
            # Serve turns that into an error of its own, which asyncio logs if nobody hears of it.
            item.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def encode(self, call: EncodeCall) -> Encoded:
        encoded: Encoded = await self._ask_one("encode", call)
        return encoded

    async def decode(self, call: DecodeCall) -> str:
        text: str = await self._ask_one("decode", call)
        return text

    async def cluster(self) -> ClusterState:
        reports = [report for report in await self._ask_all("report") if isinstance(report, ReplicaReport)]
        try:
            view = await self._aggregator.exchange(reports)
        except AggregatorAwayError as error:
            self._note_memory(False, str(error))
            return ClusterState(_view_of(reports), remembered=False)
        self._note_memory(True, "the acceptance aggregator is back")
        return ClusterState(view, remembered=True)

    async def steps(self, count: int) -> list[ReplicaSteps]:
        return [steps for steps in await self._ask_all("steps", count) if isinstance(steps, ReplicaSteps)]

    async def live(self, since: float) -> list[ReplicaLive]:
        return [live for live in await self._ask_all("live", since) if isinstance(live, ReplicaLive)]

    async def _ask_one(self, method: str, call: EncodeCall | DecodeCall) -> Any:
        """What any replica answers. Raises GooseRayError."""
        try:
            answer = await self._handle.options(method_name=method).remote(call)
        except (RayError, RayServeException) as error:
            raise _as_ours(error) from error
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    async def _ask_all(self, method: str, *args: Any) -> list[Any]:
        """What the replicas answer that answer in time; exceptions stand in for those that fail."""
        try:
            answers: list[Any] = await self._handle.broadcast(method, *args).results_async(
                timeout_s=_CONTROL_TIMEOUT_S, return_exceptions=True
            )
        except (TimeoutError, RayError, RayServeException) as error:
            logger.debug("replicas did not answer %s: %s", method, error)
            return []
        return answers

    def _note_memory(self, remembers: bool, message: str) -> None:
        """Logs changes alone: whoever polls an endpoint would fill the log with the rest. That it is away before it was
        ever there is how every deployment starts.
        """
        if remembers is not self._remembers:
            before, self._remembers = self._remembers, remembers
            if before is not None or not remembers:
                logger.log(logging.WARNING if before else logging.INFO, "%s", message)

    async def _find_aggregator(self) -> Any:
        """An actor can be looked up from inside its own deployment alone, so a replica does it."""
        # All are asked: a call that waits for a replica would start one where there is none.
        answers = await self._ask_all("aggregator")
        handles = [answer for answer in answers if answer is not None and not isinstance(answer, Exception)]
        if not handles:
            raise AggregatorAwayError("no replica can say where the acceptance aggregator is")
        return handles[0]


def _view_of(reports: Sequence[ReplicaReport]) -> ClusterView:
    """What the replicas say of themselves right now, without any memory."""
    state = AcceptanceState(live_for_s=1.0)
    for report in reports:
        state.observe(report, 0.0)
    return state.view(0.0)


def _as_ours(error: Exception) -> GooseRayError:
    if isinstance(error, BackPressureError):
        retry_after_s = _DEFAULT_RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        return OverloadedError("all replicas are busy and the queue is full; try again later", retry_after_s)
    if isinstance(error, DeploymentUnavailableError):
        return EngineDeadError("no replica is running")
    if isinstance(error, _LOST):
        return _ReplicaLostError("the replica died while it worked on this request")
    if isinstance(error, RayTaskError) and isinstance(error.cause, GooseRayError):
        return error.cause
    return GooseRayError(f"the replica failed: {error}")
