"""Sends a replica's report to the aggregator now and then, whether the aggregator is there or not."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from goose.tuning import TreeTuning
from goose_ray.telemetry.aggregator_link import AggregatorAwayError
from goose_ray.telemetry.report import ReplicaReport

__all__ = ["Reporter"]

logger = logging.getLogger(__name__)


class Reporter:
    """One task on the loop that `start` is called in.

    A report that cannot be sent is dropped: the next one says all that it said. `on_tuning` is given what the answer
    says of how trees are to be tuned, if it says anything.
    """

    def __init__(
        self,
        make_report: Callable[[], ReplicaReport],
        send: Callable[[ReplicaReport], Awaitable[TreeTuning | None]],
        *,
        period_s: float,
        on_tuning: Callable[[TreeTuning], object] = lambda _: None,
    ) -> None:
        self._make_report = make_report
        self._send = send
        self._period_s = period_s
        self._on_tuning = on_tuning
        self._task: asyncio.Task[None] | None = None
        self._away = False

    def start(self) -> None:
        """Raises RuntimeError if it runs already."""
        if self._task is not None:
            raise RuntimeError("the reporter was started twice")
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Sends one last report. Raises RuntimeError if it does not run."""
        if self._task is None:
            raise RuntimeError("the reporter was stopped before its start")
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        await self.report()

    async def report(self) -> None:
        try:
            tuning = await self._send(self._make_report())
        except AggregatorAwayError as error:
            if not self._away:
                logger.warning("%s; reports go on when it is back", error)
            self._away = True
            return
        if self._away:
            logger.info("the acceptance aggregator is back")
        self._away = False
        if tuning is not None:
            self._on_tuning(tuning)

    async def _run(self) -> None:
        while True:
            try:
                await self.report()
            except Exception:
                # whatever it was, the replica serves on and the next report may pass
                logger.exception("a report failed")
            await asyncio.sleep(self._period_s)
