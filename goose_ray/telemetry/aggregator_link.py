"""A connection to the aggregator actor that outlives the actor.

A handle stays bound to the instance it was made for. When that one dies the link looks the actor up again at the next
call; until Serve has made a new one, calls raise AggregatorAwayError and the caller goes on without.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ray.exceptions import RayError

from goose.tuning import TreeTuning
from goose_ray.errors import GooseRayError
from goose_ray.telemetry.acceptance_state import ClusterView
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.warm_starts import Offer, WarmStart

__all__ = ["AggregatorAwayError", "AggregatorLink"]


class AggregatorAwayError(GooseRayError):
    """The aggregator does not exist at the moment, or does not answer."""


class AggregatorLink:
    """`find` gives a fresh actor handle, or None if there is no actor."""

    def __init__(self, find: Callable[[], Awaitable[Any]], *, timeout_s: float) -> None:
        self._find = find
        self._timeout_s = timeout_s
        self._actor: Any = None

    async def observe(self, report: ReplicaReport) -> TreeTuning | None:
        """The replica's tuning, if it is another than the one it has."""
        tuning: TreeTuning | None = await self._call("observe", report)
        return tuning

    async def publish(self, offer: Offer) -> None:
        await self._call("publish", offer)

    async def warm_start(self, model: str) -> WarmStart:
        start: WarmStart = await self._call("warm_start", model)
        return start

    async def exchange(self, reports: Sequence[ReplicaReport]) -> ClusterView:
        view: ClusterView = await self._call("exchange", list(reports))
        return view

    async def _call(self, method: str, argument: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._actor is None:
                    self._actor = await self._find()
                if self._actor is None:
                    raise AggregatorAwayError("the acceptance aggregator is away: there is no such actor")
                return await getattr(self._actor, method).remote(argument)
        except (RayError, TimeoutError) as error:
            self._actor = None
            raise AggregatorAwayError(f"the acceptance aggregator is away: {type(error).__name__}") from error
