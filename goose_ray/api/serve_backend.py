"""The backend behind Ray Serve: handle calls to the replicas, and their failures turned into our exceptions.

The only part of the HTTP side that knows Ray.
"""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from goose_ray.api.backend import ClusterState, ReplicaSteps
from goose_ray.api.calls import Delta, Failure, GenerateCall
from goose_ray.errors import EngineDeadError, GooseRayError, OverloadedError
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.aggregator_link import AggregatorAwayError, AggregatorLink
from goose_ray.telemetry.report import ReplicaReport

__all__ = ["ServeBackend"]

logger = logging.getLogger(__name__)

# A request whose replica dies before anything of the answer was passed on is given to another one, once: more would
# let a request that kills its replica take the whole deployment down.
_ATTEMPTS = 2
# Control calls wait for a free slot of the replica as requests do; a replica that is full is reported from memory.
_CONTROL_TIMEOUT_S = 1.0
_DEFAULT_RETRY_AFTER_S = 1.0


class _ReplicaLostError(EngineDeadError):
    """The replica died under the call."""


class ServeBackend:
    """`handle` is that of the deployment whose replicas are `goose_ray.replica.GooseServer`."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._generate = handle.options(method_name="generate", stream=True)
        self._aggregator = AggregatorLink(self._find_aggregator, timeout_s=_CONTROL_TIMEOUT_S)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        for attempt in range(1, _ATTEMPTS + 1):
            begun = False
            try:
                async with aclosing(self._attempt(call)) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
                return
            except _ReplicaLostError:
                if begun or attempt == _ATTEMPTS:
                    raise
                logger.warning("the replica of request %s died before it answered; trying another", call.request_id)

    async def _attempt(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        response = self._generate.remote(call)
        ended = False
        try:
            async for item in response:
                if isinstance(item, Failure):
                    ended = True
                    raise item.error
                ended = item.finish_reason is not None
                yield item
            ended = True
        except (RayError, RayServeException) as error:
            ended = True
            raise _as_ours(error) from error
        finally:
            if not ended:
                # the client is gone: the replica stops at its next await
                response.cancel()

    async def cluster(self) -> ClusterState:
        reports = [report for report in await self._ask_all("report") if isinstance(report, ReplicaReport)]
        try:
            return ClusterState(await self._aggregator.exchange(reports), remembered=True)
        except AggregatorAwayError as error:
            logger.warning("%s", error)
        now = time.monotonic()
        state = AcceptanceState(live_for_s=_CONTROL_TIMEOUT_S)
        for report in reports:
            state.observe(report, now)
        return ClusterState(state.view(now), remembered=False)

    async def steps(self, count: int) -> list[ReplicaSteps]:
        return [steps for steps in await self._ask_all("steps", count) if isinstance(steps, ReplicaSteps)]

    async def _ask_all(self, method: str, *args: Any) -> list[Any]:
        """What the replicas answer that answer in time; exceptions stand in for those that fail."""
        try:
            answers: list[Any] = await self._handle.broadcast(method, *args).results_async(
                timeout_s=_CONTROL_TIMEOUT_S, return_exceptions=True
            )
        except (TimeoutError, RayError, RayServeException) as error:
            logger.warning("replicas did not answer %s: %s", method, error)
            return []
        return answers

    async def _find_aggregator(self) -> Any:
        """An actor can be looked up from inside its own deployment alone, so a replica does it."""
        try:
            return await self._handle.aggregator.remote()
        except RayServeException as error:
            raise AggregatorAwayError(f"no replica can say where the acceptance aggregator is: {error}") from error


def _as_ours(error: Exception) -> GooseRayError:
    if isinstance(error, BackPressureError):
        retry_after_s = _DEFAULT_RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        return OverloadedError("all replicas are busy and the queue is full; try again later", retry_after_s)
    if isinstance(error, DeploymentUnavailableError):
        return EngineDeadError("no replica is running")
    if isinstance(error, RayActorError):
        return _ReplicaLostError("the replica died while it worked on this request")
    if isinstance(error, RayTaskError) and isinstance(error.cause, GooseRayError):
        return error.cause
    return GooseRayError(f"the replica failed: {error}")
