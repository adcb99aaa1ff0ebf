"""Delivery may lose, repeat and reorder reports within a bucket of time: tunings depend on the newest arrived alone."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from telemetry_builders import counts_of, report_of

from goose.tuning_counts import TuningCounts
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.tuning_state import TuningState


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[ReplicaReport], list[ReplicaReport]]:
    """What arrives of some lives, and the newest arrived of each."""
    made = []
    for life in range(draw(st.integers(1, 4))):
        counts = TuningCounts.none()
        for sequence in range(1, draw(st.integers(1, 4)) + 1):
            counts += counts_of(draw(st.floats(-2, 2)), draw(st.floats(0, 500)))
            workload = ("code", "chat")[life % 2]
            # clocks of replicas may say anything
            started_at = draw(st.floats(0, 1e9))
            made.append(
                report_of(f"life-{life}", sequence, {}, tuning_counts=counts, workload=workload, started_at=started_at)
            )
    arrived = draw(st.lists(st.sampled_from(made), min_size=1, max_size=12))
    newest: dict[str, ReplicaReport] = {}
    for report in arrived:
        if report.incarnation.id not in newest or report.sequence > newest[report.incarnation.id].sequence:
            newest[report.incarnation.id] = report
    return arrived, list(newest.values())


def state_of(reports: list[ReplicaReport]) -> TuningState:
    state = TuningState(half_life_s=100.0)
    for report in reports:
        state.observe(report, 1.0)
    return state


def offsets(state: TuningState, reports: list[ReplicaReport]) -> list[list[float]]:
    return [list(state.tuning(name, 1.0).offsets) for name in sorted({report.incarnation.id for report in reports})]


@given(deliveries(), st.randoms(use_true_random=False))
def test_only_the_newest_arrived_report_of_each_life_matters(
    case: tuple[list[ReplicaReport], list[ReplicaReport]], random: Random
) -> None:
    arrived, newest = case
    shuffled = [*arrived, *arrived]
    random.shuffle(shuffled)
    wanted = offsets(state_of(newest), newest)
    for delivered in (arrived, shuffled):
        assert np.allclose(offsets(state_of(delivered), newest), wanted, atol=0.002)
