"""What the aggregator tells each replica: from all recent counts, its own once, and nothing while nothing changes."""

from dataclasses import replace
from typing import Any

import pytest
from telemetry_builders import counts_of, report_of

from goose.tuning import TreeTuning, solve
from goose.tuning_counts import TuningCounts
from goose_ray.telemetry.cluster_memory import ClusterMemory
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.tuning_state import TuningState

HALF_LIFE_S = 100.0


def told(state: TuningState, report: ReplicaReport, now: float) -> TreeTuning:
    state.observe(report, now)
    return state.tuning(report.incarnation.id, now)


def saying(name: str, sequence: int, counts: TuningCounts, **about: Any) -> ReplicaReport:
    return report_of(name, sequence, {}, tuning_counts=counts, **about)


def memory(*, tunes: bool = True) -> ClusterMemory:
    return ClusterMemory(live_for_s=1.0, half_life_s=HALF_LIFE_S, now=0.0, started_at=50.0, tunes=tunes)


def test_a_replica_without_counts_is_tuned_by_the_others() -> None:
    state = TuningState(half_life_s=HALF_LIFE_S)
    told(state, saying("a", 1, counts_of(0.8)), 0)
    fresh = told(state, saying("b", 1, TuningCounts.none()), 0)
    assert fresh.offsets == solve([counts_of(0.8)]).offsets
    assert fresh.based_on == (0.0, 3000.0, 0.0)


def test_ones_own_counts_are_counted_once() -> None:
    state = TuningState(half_life_s=HALF_LIFE_S)
    tuning = told(state, saying("a", 1, counts_of(0.8)), 0)
    assert tuning.based_on == (0.0, 0.0, 3000.0)
    assert tuning.offsets == solve([TuningCounts.none(), TuningCounts.none(), counts_of(0.8)]).offsets


def test_ones_workload_stands_between_the_cluster_and_oneself() -> None:
    state = TuningState(half_life_s=HALF_LIFE_S)
    told(state, saying("code", 1, counts_of(1.0), workload="code"), 0)
    told(state, saying("chat", 1, counts_of(-1.0), workload="chat"), 0)
    assert told(state, saying("new", 1, TuningCounts.none(), workload="code"), 0).offsets[0] > 0.5
    assert told(state, saying("newer", 1, TuningCounts.none(), workload="chat"), 0).offsets[0] < -0.5
    assert told(state, saying("third", 1, TuningCounts.none(), workload="tools"), 0).based_on == (6000.0, 0.0, 0.0)


def test_models_learn_nothing_from_each_other() -> None:
    state = TuningState(half_life_s=HALF_LIFE_S)
    told(state, saying("old", 1, counts_of(1.0), model="old"), 0)
    told(state, saying("other", 1, counts_of(-1.0), model="new", workload="chat"), 0)
    fresh = told(state, saying("new", 1, TuningCounts.none(), model="new"), 0)
    assert fresh.based_on == (3000.0, 0.0, 0.0)
    assert fresh.offsets[0] < -0.5


def test_old_counts_give_way_to_new_ones() -> None:
    state = TuningState(half_life_s=HALF_LIFE_S)
    told(state, saying("a", 1, counts_of(1.0)), 0)
    both = counts_of(1.0) + counts_of(-1.0)
    at_once = told(state, saying("a", 2, both), 1)
    assert abs(at_once.offsets[0]) < 0.05
    later = told(state, saying("b", 1, counts_of(-1.0)), 10 * HALF_LIFE_S)
    assert later.offsets[0] < -0.7


def test_counts_of_a_life_that_is_heard_of_late_weigh_as_if_they_had_come_evenly() -> None:
    state = TuningState(half_life_s=HALF_LIFE_S)
    old = told(state, saying("old", 1, counts_of(1.0), uptime_s=100 * HALF_LIFE_S), 0)
    assert old.based_on[2] == pytest.approx(3000 / (100 * 0.6931), rel=0.01)


def test_late_and_repeated_reports_say_nothing() -> None:
    state = TuningState(half_life_s=HALF_LIFE_S)
    newest = saying("a", 3, counts_of(0.8, attempted=3000))
    tuning = told(state, newest, 0)
    for report in (newest, saying("a", 1, counts_of(-2.0, attempted=1000)), newest):
        assert told(state, report, 0) == tuning


class TestAnswers:
    def test_an_unchanged_tuning_is_not_sent_again(self) -> None:
        cluster = memory()
        tuning = cluster.observe(saying("a", 1, counts_of(0.8)), 2)
        assert tuning is not None
        assert tuning.version >= 50
        more = counts_of(0.8) + counts_of(0.8, attempted=1)
        assert cluster.observe(saying("a", 2, more, tuning=tuning), 3) is None
        # lost on its way: sent again
        assert cluster.observe(saying("a", 3, more), 4) == tuning

    def test_a_change_reaches_every_replica_with_its_next_report(self) -> None:
        cluster = memory()
        names, few = ("a", "b", "c"), counts_of(0.0, attempted=20)
        tunings = {name: cluster.observe(saying(name, 1, few), 2) or TreeTuning() for name in names}
        changed = few + counts_of(1.5, attempted=20000)
        assert cluster.observe(saying("a", 2, changed, tuning=tunings["a"]), 3) is not None
        for name in ("b", "c"):
            answer = cluster.observe(saying(name, 2, few, tuning=tunings[name]), 3)
            assert answer is not None
            assert answer.offsets[0] > tunings[name].offsets[0] + 0.5
            assert answer.version > tunings[name].version

    def test_a_memory_that_begins_waits_until_it_knows_the_cluster(self) -> None:
        cluster = memory()
        assert cluster.observe(saying("a", 1, counts_of(0.8)), 0.5) is None
        assert cluster.observe(saying("a", 2, counts_of(0.8)), 1.5) is not None

    def test_one_that_does_not_tune(self) -> None:
        assert memory(tunes=False).observe(saying("a", 1, counts_of(0.8)), 2) is None


class TestSnapshot:
    def test_what_was_remembered_is_there_again(self) -> None:
        before = memory()
        told_before = before.observe(saying("a", 4, counts_of(0.8), workload="code"), 2)
        before.observe(report_of("b", 1, {"context": (9, 4)}, num_steps=3, accepted_per_position=(2, 1)), 2)
        after = memory()
        after.restore(before.snapshot(10, unix_time=1000), now=0, unix_time=1000)
        view = after.view(0)
        assert view.acceptance().totals()["context"] == (9, 4)
        assert not view.live, "silent for 8 s before the snapshot"
        restored = {replica.report.incarnation.id: replica.report for replica in view.replicas}
        assert restored["b"].stats == replace(report_of("b", 1, {}).stats, num_steps=3, accepted_per_position=(2, 1))
        # it tunes at once, and later than the memory before it
        tuning = after.observe(saying("a", 5, counts_of(0.8), workload="code"), 0)
        assert told_before is not None
        assert tuning is not None
        assert tuning.version > told_before.version
        assert tuning.based_on[2] == pytest.approx(3000, rel=0.1)

    @pytest.mark.parametrize("wrong", [{}, {"format": 1}, {"format": 2, "unix_time": 0, "tuning": {}}, []])
    def test_something_else_is_refused(self, wrong: object) -> None:
        with pytest.raises(ValueError, match=r"format|snapshot"):
            memory().restore(wrong, now=0, unix_time=0)  # type: ignore[arg-type]
