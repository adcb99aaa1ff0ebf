"""Reports lost, doubled and late, three aggregators and a replica killed: what the living counted is exact."""

from collections.abc import Iterator

import numpy as np
import pytest
from telemetry_builders import counts_of, report_of

from goose.tuning_counts import TuningCounts
from goose_ray.telemetry.cluster_memory import ClusterMemory
from goose_ray.telemetry.report import ReplicaReport

ROUNDS = 60
NAMES = ("a", "b", "c", "victim")


def life(name: str, rng: np.random.Generator) -> Iterator[ReplicaReport]:
    attempted = accepted = sequence = 0
    tuned = TuningCounts.none()
    while True:
        sequence += 1
        more = int(rng.integers(1, 50))
        attempted, accepted = attempted + more, accepted + int(rng.integers(more + 1))
        tuned += counts_of(float(rng.normal()), more)
        counts = {"context": (attempted, accepted)}
        yield report_of(name, sequence, counts, tuning_counts=tuned, uptime_s=float(sequence), num_steps=attempted)


def new_memory(now: float) -> ClusterMemory:
    # nothing fades, so that what is weighed can be counted
    return ClusterMemory(live_for_s=3.0, half_life_s=1e12, now=now, started_at=now)


@pytest.mark.parametrize("seed", range(5))
def test_the_living_are_counted_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lives = {name: life(name, rng) for name in NAMES}
    memory, late = new_memory(0.0), list[ReplicaReport]()
    newest: dict[str, ReplicaReport] = {}
    for now in range(1, ROUNDS + 1):
        if now in (15, 30, 45):
            snapshot, memory = memory.snapshot(now, now), new_memory(now)
            if now == 30:
                memory.restore(snapshot, now, now)
        for name in NAMES if now < ROUNDS // 2 else NAMES[:-1]:
            report = newest[name] = next(lives[name])
            if now < ROUNDS and rng.random() < 0.3:
                late.append(report)
                continue
            for _ in range(1 + int(rng.random() < 0.3)):
                memory.observe(report, now)
        # some of what was lost was only slow
        while late and rng.random() < 0.5:
            memory.observe(late.pop(int(rng.integers(len(late)))), now)
    view = memory.view(ROUNDS)
    living = {replica.report.incarnation.id: replica.report for replica in view.live}
    assert set(living) == set(NAMES[:-1])
    for name, report in living.items():
        assert report.acceptance == newest[name].acceptance
        assert report.stats.num_steps == newest[name].stats.num_steps
    known = memory.snapshot(ROUNDS, ROUNDS)["tuning"]["replicas"]
    for name in living:
        assert np.allclose(known[name]["recent"]["sums"], newest[name].tuning_counts.sums, rtol=1e-9)
