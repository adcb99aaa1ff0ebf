"""Reports go on whatever happens to the aggregator, and the link finds a new one when the old one is dead."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ray.exceptions import RayActorError
from telemetry_builders import report_of

from goose_ray.telemetry.acceptance_state import AcceptanceState, ClusterView
from goose_ray.telemetry.aggregator_link import AggregatorAwayError, AggregatorLink
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.reporter import Reporter


class Method:
    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call

    async def remote(self, argument: Any) -> Any:
        return self._call(argument)


class Actor:
    """Stands in for a handle: `alive` false is a dead actor, to which the handle stays bound."""

    def __init__(self) -> None:
        self.alive = True
        self.reports: list[ReplicaReport] = []
        self.observe = Method(self._observe)
        self.exchange = Method(self._exchange)

    def _observe(self, report: ReplicaReport) -> None:
        if not self.alive:
            raise RayActorError
        self.reports.append(report)

    def _exchange(self, reports: Sequence[ReplicaReport]) -> ClusterView:
        state = AcceptanceState(live_for_s=1)
        for report in reports:
            self._observe(report)
            state.observe(report, 0)
        return state.view(0)


class TestLink:
    def test_a_dead_actor_is_away_once_and_then_found_again(self) -> None:
        async def scenario() -> None:
            actors = [Actor(), Actor()]
            finds = iter(actors)

            async def find() -> Actor:
                return next(finds)

            link = AggregatorLink(find, timeout_s=5)
            await link.observe(report_of("a", 1, {}))
            actors[0].alive = False
            with pytest.raises(AggregatorAwayError):
                await link.observe(report_of("a", 2, {}))
            view = await link.exchange([report_of("a", 3, {})])
            assert [report.sequence for report in actors[1].reports] == [3]
            assert len(view.replicas) == 1

        asyncio.run(scenario())

    def test_no_actor(self) -> None:
        async def find() -> None:
            return None

        with pytest.raises(AggregatorAwayError, match="no such actor"):
            asyncio.run(AggregatorLink(find, timeout_s=5).observe(report_of("a", 1, {})))

    def test_an_actor_that_does_not_answer(self) -> None:
        async def find() -> None:
            await asyncio.Event().wait()

        with pytest.raises(AggregatorAwayError):
            asyncio.run(AggregatorLink(find, timeout_s=0.01).observe(report_of("a", 1, {})))


class TestReporter:
    def test_reports_go_on_through_failures_and_end_with_a_last_one(self) -> None:
        async def scenario() -> None:
            sent: list[int] = []
            failures = {2: AggregatorAwayError("away"), 3: ZeroDivisionError("a bug")}
            enough = asyncio.Event()
            numbers = iter(range(1, 1000))

            async def send(report: ReplicaReport) -> None:
                if report.sequence in failures:
                    raise failures[report.sequence]
                sent.append(report.sequence)
                if report.sequence >= 5:
                    enough.set()

            reporter = Reporter(lambda: report_of("a", next(numbers), {}), send, period_s=0.001)
            reporter.start()
            with pytest.raises(RuntimeError, match="twice"):
                reporter.start()
            await asyncio.wait_for(enough.wait(), timeout=10)
            before = len(sent)
            await reporter.stop()
            assert sent[0] == 1
            assert not {2, 3} & set(sent)
            assert len(sent) > before
            last = sent[-1]
            await asyncio.sleep(0.01)
            assert sent[-1] == last
            with pytest.raises(RuntimeError, match="before its start"):
                await reporter.stop()

        asyncio.run(scenario())
