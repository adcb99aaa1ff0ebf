"""What the dashboard is told: samples over time, rates, trees, and the JSON of `/v1/goose/live`."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scripted_backend import MODEL, ScriptedBackend, request
from telemetry_builders import report_of

from goose.observation import TreeOutcome
from goose.sources.registry import SOURCE_NAMES
from goose.tree import TokenTree
from goose_ray.engine.request import SourceStats
from goose_ray.engine.stats import EngineStats
from goose_ray.engine.tree_trace import TreeRecord, TreeTrace
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.dashboard.history import BUCKET_S, History, Sample, buckets_of, rates_of
from goose_ray.telemetry.dashboard.live import ReplicaLive, live_view

# a whole number of buckets
T0 = 1_000_000.0


def sample(at: float, tokens: int, trees: int, attempted: int = 0, accepted: int = 0) -> Sample:
    return Sample(T0 + at, tokens, trees, {"context": (attempted, accepted)} if attempted else {})


def tree(step_id: int, *, token_ids: tuple[int, ...] | None = None) -> TreeRecord:
    return TreeRecord(step_id, (-1, 0, 1, 0), (0, 1, 3, 2), (1.0, 0.5, 0.25, 0.125), (1, 2), token_ids)


class TestTreeTrace:
    def outcome(self, name: str, num_draft: int) -> TreeOutcome:
        drawn = TokenTree.chain(5, range(10, 10 + num_draft), source=2)
        return TreeOutcome(name, drawn, np.arange(1, num_draft), np.arange(num_draft), 0)

    def test_one_tree_a_step_of_every_sequence_in_turn_and_the_oldest_leave(self) -> None:
        trace = TreeTrace(with_tokens=False, capacity=3)
        for step in range(5):
            trace.observe(step, [self.outcome("a", 2), self.outcome("b", 3)])
        assert [(record.step_id, len(record.parents)) for record in trace.last()] == [(2, 3), (3, 4), (4, 3)]
        assert [record.step_id for record in trace.last(1)] == [4]
        newest = trace.last(1)[0]
        assert (newest.parents, newest.sources, newest.accepted) == ((-1, 0, 1), (0, 2, 2), (1,))

    def test_plain_steps_are_no_trees(self) -> None:
        trace = TreeTrace(with_tokens=False)
        trace.observe(0, [])
        trace.observe(1, [self.outcome("a", 0)])
        assert trace.last() == ()

    @pytest.mark.parametrize(("with_tokens", "shown"), [(False, None), (True, (5, 10, 11))])
    def test_tokens_are_shown_only_where_they_are_wanted(
        self, with_tokens: bool, shown: tuple[int, ...] | None
    ) -> None:
        trace = TreeTrace(with_tokens=with_tokens)
        trace.observe(0, [self.outcome("a", 2)])
        assert trace.last()[0].token_ids == shown


class TestHistory:
    def test_samples_that_come_too_soon_are_left_out_and_old_ones_leave(self) -> None:
        history = History()
        for step in range(2000):
            history.add(EngineStats(generation_tokens=step, by_source={"pool": SourceStats(step, 0)}), T0 + step)
        samples = history.since(0.0)
        assert all(after.at - before.at == 3 for before, after in pairwise(samples))
        assert 600 <= samples[-1].at - samples[0].at < 800
        assert samples[-1].sources == {"pool": (samples[-1].tokens, 0)}

    def test_what_is_asked_for_comes_with_the_sample_before_it_and_enough_for_the_present(self) -> None:
        history = History()
        for step in range(20):
            history.add(EngineStats(num_trees=step), T0 + 5 * step)
        assert [s.trees for s in history.since(T0 + 42)] == list(range(8, 20))
        assert [s.trees for s in history.since(T0 + 1000)] == [16, 17, 18, 19]

    def test_what_happened_between_two_samples_is_spread_over_the_time_between(self) -> None:
        one = [sample(0, 0, 0), sample(10, 40, 20, 8, 4)]
        other = [sample(2.5, 100, 50), sample(7.5, 110, 55)]
        first, second = buckets_of([one, other], since=T0, until=T0 + 2 * BUCKET_S)
        assert (first.start, first.tokens, first.trees) == (T0, 25, 12.5)
        assert (second.start, second.tokens, second.trees) == (T0 + 5, 25, 12.5)
        assert first.sources == {"context": [4, 2]}

    def test_samples_at_the_edge_of_a_bucket_belong_to_the_one_before(self) -> None:
        samples = [sample(0, 0, 0), sample(5, 5, 5), sample(10, 10, 10)]
        assert [b.tokens for b in buckets_of([samples], since=T0, until=T0 + 20)] == [5, 5]

    def test_only_whole_buckets_are_told_and_a_clock_set_back_makes_none(self) -> None:
        samples = [sample(0, 0, 0), sample(12, 12, 12)]
        assert [b.start - T0 for b in buckets_of([samples], since=T0 + 1, until=T0 + 12)] == [5]
        assert buckets_of([[sample(9, 1, 1), sample(0, 9, 9)]], since=0, until=T0 + 20) == []

    def test_the_present_is_the_last_ten_seconds(self) -> None:
        samples = [sample(0, 0, 0), sample(5, 1000, 1000), sample(10, 1050, 1020), sample(15, 1100, 1040)]
        assert rates_of(samples) == (10.0, 2.5)
        assert rates_of(samples[:1]) == (0.0, None)
        assert rates_of([sample(0, 5, 5), sample(20, 5, 5)]) == (0.0, None)


class TestView:
    def test_the_cluster_is_the_sum_of_its_replicas(self) -> None:
        state = AcceptanceState(live_for_s=10)
        gauges: dict[str, Any] = {"num_requests_running": 2, "kv_slots_used": 30, "kv_slots_total": 100}
        state.observe(report_of("a", 1, {"context": (10, 5)}, replica_id="ra", **gauges), 0)
        state.observe(report_of("b", 1, {"context": (30, 5)}, replica_id="rb", **gauges), 0)
        lives = [
            ReplicaLive("ra", (sample(0, 0, 0), sample(10, 100, 25)), (tree(1), tree(3)), (("", "a", "b", "c"),) * 2),
            ReplicaLive("rb", (sample(0, 0, 0), sample(10, 100, 100)), (tree(7),)),
        ]
        shown = live_view(state.view(0), lives, model="m", remembered=True, since=0.0, now=T0 + 16)
        cluster = shown["cluster"]
        assert (cluster["live"], cluster["running"], cluster["kv_used"], cluster["kv_total"]) == (2, 4, 60, 200)
        # 200 tokens of 125 trees
        assert (cluster["tokens_per_s"], cluster["tau"]) == (20, 1.6)
        assert [(r["tokens_per_s"], r["tau"]) for r in shown["replicas"]] == [(10, 4), (10, 1)]
        assert shown["sources"]["context"] == {"attempted": 40, "accepted": 10, "by_depth": [[1, 1, 40, 10]]}
        assert [(p["tokens_per_s"], p["tau"]) for p in shown["history"]] == [(20, 1.6)] * 2
        assert [(t["replica_id"], t["step_id"]) for t in shown["trees"]] == [("ra", 3), ("rb", 7), ("ra", 1)]
        assert [t["texts"] for t in shown["trees"]] == [["", "a", "b", "c"], None, ["", "a", "b", "c"]]

    def test_a_replica_that_does_not_answer_has_counters_and_no_rates(self) -> None:
        state = AcceptanceState(live_for_s=10)
        state.observe(report_of("a", 1, {}, generation_tokens=7), 0)
        shown = live_view(state.view(0), [], model="m", remembered=True, since=0.0, now=T0)
        (replica,) = shown["replicas"]
        assert (replica["generation_tokens"], replica["tokens_per_s"], replica["tau"]) == (7, None, None)
        assert (shown["history"], shown["trees"], shown["cluster"]["tau"]) == ([], [], None)

    def test_no_more_trees_than_a_page_shows(self) -> None:
        lives = [ReplicaLive(f"r{i}", (), (tree(0), tree(1))) for i in range(100)]
        shown = live_view(AcceptanceState(live_for_s=1).view(0), lives, model="m", remembered=True, since=0.0, now=T0)
        assert [t["step_id"] for t in shown["trees"]] == [1] * 8


class TestRoute:
    def test_schema(self) -> None:
        backend = ScriptedBackend()
        backend.live_replicas = [ReplicaLive("r1", (sample(0, 0, 0), sample(30, 60, 20)), (tree(4),))]
        response = request(backend, "GET", "/v1/goose/live?since=1")
        assert response.status_code == 200
        assert response.headers["cache-control"] == "no-store"
        live = response.json()
        assert (live["object"], live["model"], live["remembered"]) == ("goose.live", MODEL, True)
        assert live["source_names"] == list(SOURCE_NAMES)
        (replica,) = live["replicas"]
        assert (replica["running"], replica["kv_used"], replica["tokens_per_s"], replica["tau"]) == (2, 5, 2, 3)
        (drawn,) = live["trees"]
        lengths = {len(drawn[name]) for name in ("parents", "sources", "probs")}
        assert (lengths, drawn["accepted"], drawn["texts"]) == ({4}, [1, 2], None)
        # what is old is not sent
        assert live["history"] == []

    @pytest.mark.parametrize("since", ["nan", "inf", "x"])
    def test_a_wrong_time_is_refused(self, since: str) -> None:
        response = request(ScriptedBackend(), "GET", f"/v1/goose/live?since={since}")
        assert response.status_code == 400
        assert json.loads(response.text)["error"]["param"] == "since"
