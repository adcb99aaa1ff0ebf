"""The merge of reports: what a view shows of live, silent, folded and restarted replicas."""

from telemetry_builders import report_of

from goose_ray.telemetry.acceptance_state import AcceptanceState


def test_the_cluster_is_the_sum_of_its_incarnations() -> None:
    state = AcceptanceState(live_for_s=10)
    state.observe(report_of("a", 1, {"context": (5, 3)}), now=0)
    state.observe(report_of("b", 1, {"context": (2, 2), "transitions": (7, 1)}), now=0)
    assert state.view(0).acceptance().totals() == {"context": (7, 5), "transitions": (7, 1)}


def test_a_later_report_replaces_an_earlier_one_of_its_incarnation() -> None:
    state = AcceptanceState(live_for_s=10)
    state.observe(report_of("a", 1, {"context": (5, 3)}, num_requests_running=4), now=0)
    state.observe(report_of("a", 2, {"context": (9, 4)}, num_requests_running=1), now=1)
    (replica,) = state.view(2).replicas
    assert replica.report.acceptance.totals() == {"context": (9, 4)}
    assert replica.report.stats.num_requests_running == 1
    assert replica.age_s == 1


def test_a_late_report_changes_neither_counts_nor_gauges_nor_age() -> None:
    state = AcceptanceState(live_for_s=10)
    state.observe(report_of("a", 2, {"context": (9, 4)}, num_requests_running=1), now=1)
    state.observe(report_of("a", 1, {"context": (5, 3)}, num_requests_running=4), now=5)
    (replica,) = state.view(5).replicas
    assert replica.report.acceptance.totals() == {"context": (9, 4)}
    assert replica.report.stats.num_requests_running == 1
    assert replica.age_s == 4


def test_a_restarted_replica_is_another_incarnation() -> None:
    state = AcceptanceState(live_for_s=10)
    state.observe(report_of("first", 30, {"context": (100, 50)}, replica_id="r", started_at=1), now=0)
    state.observe(report_of("second", 1, {"context": (1, 0)}, replica_id="r", started_at=2), now=20)
    view = state.view(20)
    assert view.acceptance().totals() == {"context": (101, 50)}
    assert [(replica.report.incarnation.id, replica.live) for replica in view.replicas] == [
        ("second", True),
        ("first", False),
    ]


def test_silence_makes_a_replica_gone_and_a_word_brings_it_back() -> None:
    state = AcceptanceState(live_for_s=10)
    state.observe(report_of("a", 1, {}, num_requests_running=3, num_steps=5), now=0)
    assert state.view(10).live
    assert not state.view(10.1).live
    gone = state.view(10.1).gone()
    assert (gone.num_requests_running, gone.num_steps) == (0, 5)
    state.observe(report_of("a", 2, {}, num_steps=6), now=11)
    assert state.view(11).gone().num_steps == 0
    assert state.view(11).live


def test_an_unhealthy_replica_is_live_but_not_healthy() -> None:
    state = AcceptanceState(live_for_s=10)
    state.observe(report_of("a", 1, {}, healthy=False), now=0)
    view = state.view(0)
    assert (len(view.live), len(view.healthy)) == (1, 0)


class TestBound:
    def test_the_longest_silent_are_folded_and_keep_counting(self) -> None:
        state = AcceptanceState(live_for_s=10, max_incarnations=2)
        for second, name in enumerate(("a", "b", "c", "d")):
            state.observe(report_of(name, 1, {"context": (10, 1)}, num_steps=1), now=100 * second)
        view = state.view(300)
        assert [replica.report.incarnation.id for replica in view.replicas] == ["d", "c"]
        assert view.retired.num_incarnations == 2
        assert view.acceptance().totals() == {"context": (40, 4)}
        assert view.gone().num_steps == 3

    def test_a_repeated_report_of_a_folded_one_does_not_count_twice(self) -> None:
        state = AcceptanceState(live_for_s=10, max_incarnations=1)
        old = report_of("a", 1, {"context": (10, 1)})
        state.observe(old, now=0)
        state.observe(report_of("b", 1, {"context": (10, 1)}), now=100)
        state.observe(old, now=101)
        assert state.view(101).acceptance().totals() == {"context": (20, 2)}

    def test_one_that_was_folded_while_silent_is_listed_again_when_it_speaks(self) -> None:
        state = AcceptanceState(live_for_s=1, max_incarnations=1)
        state.observe(report_of("silent", 1, {"context": (10, 5)}, num_steps=4), 0)
        state.observe(report_of("other", 1, {"context": (1, 1)}, num_steps=1), 100)
        assert state.view(100).retired.num_incarnations == 1
        assert state.observe(report_of("silent", 2, {"context": (30, 9)}, num_steps=7), 101)
        view = state.view(101)
        assert {replica.report.incarnation.id for replica in view.live} == {"silent", "other"}
        assert view.retired.num_incarnations == 0
        assert view.acceptance().totals() == {"context": (31, 10)}
        assert view.gone().num_steps == 0

    def test_live_ones_are_never_folded(self) -> None:
        state = AcceptanceState(live_for_s=10, max_incarnations=1)
        for name in ("a", "b", "c"):
            state.observe(report_of(name, 1, {"context": (1, 1)}), now=0)
        assert len(state.view(0).replicas) == 3
