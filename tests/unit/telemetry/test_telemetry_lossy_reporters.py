"""Real reporters, links and aggregators in one process, over counters of real speculation: whatever delivery does to
the reports, once all is quiet the cluster has counted what the living replicas counted, and nothing else.
"""

import asyncio
import itertools
import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from ray.exceptions import RayActorError
from recording_builders import looping_recording, random_recording

from goose.calibration import AcceptanceTable
from goose.replay import Recording, replay
from goose.speculator import Speculator
from goose.tuning import TreeTuning
from goose_ray.engine.stats import EngineStats
from goose_ray.telemetry.acceptance_aggregator import AcceptanceAggregator
from goose_ray.telemetry.aggregator_link import AggregatorAwayError, AggregatorLink
from goose_ray.telemetry.report import Incarnation, ReplicaReport
from goose_ray.telemetry.reporter import Reporter

ROUNDS, LOST, DOUBLED = 12, 0.3, 0.3
KILLED_AGGREGATORS, KILLED_REPLICA = (3, 6, 8), 10


class Actors:
    """What Serve does: there is an aggregator, and when it has died another one, which knows nothing."""

    def __init__(self) -> None:
        self.kill()

    def kill(self) -> None:
        # tunes from the first report on
        self.current = AcceptanceAggregator(live_for_s=0.0)
        # incarnation -> the newest report that this one was given
        self.newest: dict[str, ReplicaReport] = {}

    async def find(self) -> "Handle":
        return Handle(self, self.current)


class Handle:
    """Stays bound to the actor it was made for. What travels is packed and unpacked."""

    def __init__(self, actors: Actors, actor: AcceptanceAggregator) -> None:
        self._actors, self._actor = actors, actor

    @property
    def observe(self) -> "Handle":
        return self

    async def remote(self, report: ReplicaReport) -> TreeTuning | None:
        if self._actors.current is not self._actor:
            raise RayActorError
        known = self._actors.newest.setdefault(report.incarnation.id, report)
        if report.sequence > known.sequence:
            self._actors.newest[report.incarnation.id] = report
        return self._actor.observe(pickle.loads(pickle.dumps(report)))


class Replica:
    """A speculator that serves recordings, and reports what it counted by a way that loses and doubles reports."""

    def __init__(self, number: int, actors: Actors, rng: np.random.Generator) -> None:
        self.incarnation = Incarnation(f"replica-{number}", float(number), f"life-{number}")
        self.speculator = Speculator(policy="anisotropic", budget=12)
        self.is_quiet = False
        self.sent: list[ReplicaReport] = []
        self._steps, self._numbers = 0, itertools.count(1)
        self._link, self._rng = AggregatorLink(actors.find, timeout_s=5.0), rng
        self.reporter = Reporter(self.report, self._send, period_s=1e9, on_tuning=self.speculator.tune)

    def serve(self, recording: Recording) -> None:
        self._steps += replay(replace(recording, name=f"{recording.name}-{self._steps}"), self.speculator).steps

    def report(self) -> ReplicaReport:
        return ReplicaReport(
            incarnation=self.incarnation,
            sequence=next(self._numbers),
            model="m",
            max_model_len=64,
            healthy=True,
            acceptance=self.speculator.counters(),
            stats=EngineStats(num_steps=self._steps),
            tuning_counts=self.speculator.tuning_counts(),
        )

    async def straggle(self) -> None:
        for report in self.sent:
            await self._link.observe(report)

    async def _send(self, report: ReplicaReport) -> TreeTuning | None:
        if not self.is_quiet and self._rng.random() < LOST:
            raise AggregatorAwayError("lost on the way")
        tuning = await self._link.observe(report)
        if not self.is_quiet and self._rng.random() < DOUBLED:
            # it, or one of those before, comes again
            self.sent.append(report)
            await self._link.observe(self.sent[int(self._rng.integers(len(self.sent)))])
        return tuning


def sum_of(tables: Sequence[AcceptanceTable]) -> AcceptanceTable:
    total = AcceptanceTable()
    for table in tables:
        total = total.add(table)
    return total


async def run(num_replicas: int, seed: int) -> tuple[list[Replica], Actors]:
    """The living, once they have reported in peace, and the last aggregator."""
    rng, actors = np.random.default_rng(seed), Actors()
    living = [Replica(number, actors, rng) for number in range(num_replicas)]
    prompts: list[Recording] = [looping_recording(f"loop-{period}", period=period) for period in (3, 5, 7)]
    prompts += [random_recording(f"text-{each}", seed=each, vocab_size=8) for each in range(3)]
    for number in range(ROUNDS):
        if number in KILLED_AGGREGATORS:
            actors.kill()
        if number == KILLED_REPLICA:
            living.pop(int(rng.integers(num_replicas)))
        for replica in living:
            replica.serve(prompts[int(rng.integers(len(prompts)))])
            await replica.reporter.report()
    for replica in living:
        replica.is_quiet = True
        # a link may still be bound to an actor that has died, and learns it by the first of them
        await replica.reporter.report()
        await replica.reporter.report()
        # what was on its way for long still comes
        await replica.straggle()
    return living, actors


@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_what_the_living_counted_is_exact(num_replicas: int, seed: int) -> None:
    living, actors = asyncio.run(run(num_replicas, seed))
    view = actors.current.exchange([])
    known = {replica.report.incarnation.id: replica.report for replica in view.replicas}
    assert len(living) == num_replicas - 1
    for replica in living:
        report, now = known.pop(replica.incarnation.id), replica.report()
        assert report.acceptance == now.acceptance
        assert report.stats.num_steps == now.stats.num_steps > 0
        assert report.tuning_counts.num_trees == now.tuning_counts.num_trees > 0
        assert np.allclose(report.tuning_counts.sums, now.tuning_counts.sums, rtol=1e-6, atol=1e-6)
    # of the dead one what it said last stands, if anything came through since the last aggregator began
    gone = {name: report for name, report in actors.newest.items() if name in known}
    assert {name: report.sequence for name, report in known.items()} == {n: r.sequence for n, r in gone.items()}
    counted = [replica.speculator.counters() for replica in living]
    assert view.acceptance() == sum_of([*counted, *(report.acceptance for report in gone.values())])
