"""Whatever delivery does to reports - lose, repeat, reorder them, restart replicas or the aggregator - none is counted
twice, and one round of fresh reports makes the cluster's table whole.
"""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from telemetry_builders import report_of

from goose.calibration import AcceptanceTable
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.report import ReplicaReport

SOURCES = ("context", "transitions")
LIVE_FOR_S = 1e9


@st.composite
def lives(draw: st.DrawFn) -> list[list[ReplicaReport]]:
    """For each incarnation all reports it makes, in order; counters only grow."""
    all_lives = []
    for number in range(draw(st.integers(1, 4))):
        totals = dict.fromkeys(SOURCES, (0, 0))
        reports = []
        for sequence in range(1, draw(st.integers(1, 5)) + 1):
            for source in SOURCES:
                attempted = draw(st.integers(0, 20))
                accepted = draw(st.integers(0, attempted))
                totals[source] = (totals[source][0] + attempted, totals[source][1] + accepted)
            # two lives of one replica: the same id, another incarnation
            steps = sum(attempted for attempted, _ in totals.values())
            reports.append(report_of(f"life-{number}", sequence, totals, replica_id=f"r{number // 2}", num_steps=steps))
        all_lives.append(reports)
    return all_lives


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[list[ReplicaReport]], list[ReplicaReport]]:
    """All reports made, and those that arrive: any of them, any number of times, in any order."""
    made = draw(lives())
    flat = [report for reports in made for report in reports]
    return made, draw(st.lists(st.sampled_from(flat), max_size=12))


def merged(reports: list[ReplicaReport]) -> AcceptanceState:
    state = AcceptanceState(live_for_s=LIVE_FOR_S)
    for now, report in enumerate(reports):
        state.observe(report, now)
    return state


def sum_of(reports: list[ReplicaReport]) -> AcceptanceTable:
    total = AcceptanceTable()
    for report in reports:
        total = total.add(report.acceptance)
    return total


@given(deliveries())
def test_what_has_arrived_is_the_newest_arrived_report_of_each_incarnation(
    case: tuple[list[list[ReplicaReport]], list[ReplicaReport]],
) -> None:
    _, arrived = case
    newest: dict[str, ReplicaReport] = {}
    for report in arrived:
        key = report.incarnation.id
        if key not in newest or report.sequence > newest[key].sequence:
            newest[key] = report
    view = merged(arrived).view(0)
    assert view.acceptance() == sum_of(list(newest.values()))
    assert {r.report.incarnation.id: r.report.stats.num_steps for r in view.replicas} == {
        key: report.stats.num_steps for key, report in newest.items()
    }


@given(deliveries(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(
    case: tuple[list[list[ReplicaReport]], list[ReplicaReport]], random: Random
) -> None:
    _, arrived = case
    shuffled = list(arrived)
    random.shuffle(shuffled)
    assert merged(arrived).view(0).acceptance() == merged(shuffled).view(0).acceptance()


@given(deliveries())
def test_one_round_of_reports_makes_the_table_whole(
    case: tuple[list[list[ReplicaReport]], list[ReplicaReport]],
) -> None:
    made, arrived = case
    state = merged(arrived)
    for reports in made:
        state.observe(reports[-1], 100)
    assert state.view(100).acceptance() == sum_of([reports[-1] for reports in made])


@given(deliveries())
def test_a_new_aggregator_is_whole_after_one_round_but_for_those_who_died(
    case: tuple[list[list[ReplicaReport]], list[ReplicaReport]],
) -> None:
    made, arrived = case
    living = made[len(made) // 2 :]
    names = {reports[0].incarnation.id for reports in living}
    fresh = AcceptanceState(live_for_s=LIVE_FOR_S)
    # the round, and stragglers of the living that were on their way
    for report in [reports[-1] for reports in living] + [r for r in arrived if r.incarnation.id in names]:
        fresh.observe(report, 0)
    assert fresh.view(0).acceptance() == sum_of([reports[-1] for reports in living])


@given(deliveries(), st.integers(1, 3))
def test_folding_loses_nothing_that_has_arrived(
    case: tuple[list[list[ReplicaReport]], list[ReplicaReport]], max_incarnations: int
) -> None:
    made, _ = case
    state = AcceptanceState(live_for_s=1, max_incarnations=max_incarnations)
    for number, reports in enumerate(made):
        for report in reports:
            # a life's reports come together, long after the life before
            state.observe(report, 100 * number)
    view = state.view(100 * len(made))
    assert view.acceptance() == sum_of([reports[-1] for reports in made])
    assert len(view.replicas) <= max(max_incarnations, 1)


@given(deliveries(), st.integers(1, 3))
def test_who_was_folded_while_silent_is_counted_exactly_once_it_speaks_again(
    case: tuple[list[list[ReplicaReport]], list[ReplicaReport]], max_incarnations: int
) -> None:
    _, arrived = case
    state = AcceptanceState(live_for_s=1, max_incarnations=max_incarnations)
    newest: dict[str, ReplicaReport] = {}
    for number, report in enumerate(arrived):
        # all the others have been silent for long
        state.observe(report, 100 * number)
        key = report.incarnation.id
        if key not in newest or report.sequence > newest[key].sequence:
            newest[key] = report
    view = state.view(100 * len(arrived))
    assert view.acceptance() == sum_of(list(newest.values()))
    assert view.gone().num_steps == sum(report.stats.num_steps for report in newest.values())
    assert len(view.replicas) + view.retired.num_incarnations == len(newest)
