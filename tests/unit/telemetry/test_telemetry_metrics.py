"""Engine statistics as Prometheus text: names, labels, sums, and series that never fall."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.util.metrics import Counter, Gauge
from telemetry_builders import report_of

from goose.tuning import TreeTuning
from goose_ray.engine.request import SourceStats
from goose_ray.engine.stats import TTFT_BOUNDS, EngineStats, Histogram
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.metrics import render_metrics
from goose_ray.telemetry.ray_metrics import RayMetrics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(state: AcceptanceState, now: float) -> Samples:
    families = text_string_to_metric_families(render_metrics(state.view(now), "m"))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    model = {} if name == "goose_replicas" else {"model_name": "m"}
    return samples[name, frozenset({**labels, **model}.items())]


def two_replicas() -> AcceptanceState:
    state = AcceptanceState(live_for_s=10)
    histogram = Histogram(TTFT_BOUNDS, (2, 1, *(0,) * (len(TTFT_BOUNDS) - 2), 1), sum=7.5)
    state.observe(
        report_of(
            "a",
            1,
            {},
            replica_id="ra",
            num_requests_running=3,
            kv_slots_used=5,
            kv_slots_total=10,
            prefix_cache_queries=100,
            prefix_cache_hits=60,
            num_drafts=4,
            num_draft_tokens=40,
            num_accepted_tokens=9,
            accepted_per_position=(5, 4),
            by_source={"context": SourceStats(20, 9)},
            finished_by_reason={"stop": 2, "length": 1},
            ttft_seconds=histogram,
        ),
        now=0,
    )
    state.observe(
        report_of(
            "b",
            1,
            {},
            replica_id="rb",
            healthy=False,
            num_requests_running=1,
            kv_slots_total=10,
            prefix_cache_queries=20,
            num_drafts=1,
            accepted_per_position=(1, 0, 1),
            finished_by_reason={"stop": 5},
            ttft_seconds=histogram,
        ),
        now=5,
    )
    return state


def test_each_replica_has_its_series_and_vllms_names_have_the_sum() -> None:
    samples = samples_of(two_replicas(), now=5)
    assert value(samples, "goose_num_requests_running", replica="ra") == 3
    assert value(samples, "vllm:num_requests_running") == 4
    assert value(samples, "goose_kv_cache_usage_perc", replica="ra") == 0.5
    assert value(samples, "vllm:kv_cache_usage_perc") == 0.25
    assert value(samples, "goose_prefix_cache_hits_total", replica="ra") == 60
    assert value(samples, "vllm:prefix_cache_queries_total") == 120
    assert value(samples, "vllm:prefix_cache_hits_total") == 60
    assert value(samples, "goose_spec_decode_num_drafts_total", replica="rb") == 1
    assert value(samples, "vllm:spec_decode_num_drafts_total") == 5
    assert value(samples, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="0") == 6
    assert value(samples, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="2") == 1
    assert value(samples, "goose_spec_decode_source_attempted_tokens_total", replica="ra", source="context") == 20
    assert value(samples, "vllm:request_success_total", finished_reason="stop") == 7
    assert value(samples, "goose_replicas", state="live") == 2
    assert value(samples, "goose_replicas", state="healthy") == 1


def test_who_adds_up_lines_by_what_their_names_hold_counts_nothing_twice() -> None:
    """As `vllm bench serve` reads: no parser, and the first of these that a line holds is what it counts."""
    read: dict[str, int] = {}
    accepted_at: dict[int, int] = {}
    for line in render_metrics(two_replicas().view(5), "m").splitlines():
        if not line.startswith("vllm:spec_decode"):
            continue
        value = int(float(line.split()[-1]))
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens_per_pos", "num_accepted_tokens")
        name = next(name for name in names if name in line)
        if name == "num_accepted_tokens_per_pos":
            accepted_at[int(line.split('position="')[1].split('"')[0])] = value
        else:
            read[name] = read.get(name, 0) + value
    assert read == {"num_drafts": 5, "num_draft_tokens": 40, "num_accepted_tokens": 9}
    assert accepted_at == {0: 6, 1: 4, 2: 1}


def test_histograms_are_cumulative_and_add_up() -> None:
    samples = samples_of(two_replicas(), now=5)
    name = "goose_time_to_first_token_seconds"
    assert [value(samples, f"{name}_bucket", replica="ra", le=le) for le in ("0.001", "1.0", "+Inf")] == [2, 3, 4]
    assert value(samples, f"{name}_count", replica="ra") == 4
    assert value(samples, "vllm:time_to_first_token_seconds_sum") == 15.0


def test_counters_of_a_replica_that_is_gone_move_to_another_series_and_its_gauges_end() -> None:
    state = two_replicas()
    before, after = samples_of(state, now=5), samples_of(state, now=12)
    assert value(before, "goose_spec_decode_num_drafts_total", replica="gone") == 0
    assert value(after, "goose_spec_decode_num_drafts_total", replica="gone") == 4
    assert ("goose_spec_decode_num_drafts_total", frozenset({("model_name", "m"), ("replica", "ra")})) not in after
    assert value(after, "vllm:spec_decode_num_drafts_total") == value(before, "vllm:spec_decode_num_drafts_total")
    assert value(after, "vllm:num_requests_running") == 1


def test_an_empty_cluster_has_metrics_too() -> None:
    samples = samples_of(AcceptanceState(live_for_s=1), now=0)
    assert value(samples, "vllm:num_requests_running") == 0
    assert value(samples, "goose_replicas", state="live") == 0


def test_each_living_replica_shows_the_tuning_it_uses() -> None:
    state = AcceptanceState(live_for_s=10)
    tuning = TreeTuning(version=7, offsets=(0.5, 0.0, -0.25), temperature=0.9)
    state.observe(report_of("a", 1, {}, replica_id="r1", tuning=tuning), now=0)
    text = render_metrics(state.view(0), "m")
    assert 'goose_tuning_version{model_name="m",replica="r1"} 7.0' in text
    assert 'goose_tuning_offset{group="context",model_name="m",replica="r1"} 0.5' in text
    assert 'goose_tuning_offset{group="transitions",model_name="m",replica="r1"} -0.25' in text
    assert 'goose_tuning_temperature{model_name="m",replica="r1"} 0.9' in text


def test_acceptance_by_source_and_depth_is_the_clusters_alone() -> None:
    state = AcceptanceState(live_for_s=10)
    state.observe(report_of("a", 1, {"context": (10, 4)}), now=0)
    state.observe(report_of("b", 1, {"context": (20, 5), "pool": (3, 3)}), now=0)
    samples = samples_of(state, now=5)
    name = "goose_spec_decode_depth_{}_tokens_total"
    assert value(samples, name.format("attempted"), source="context", depth="1") == 30
    assert value(samples, name.format("accepted"), source="context", depth="1") == 9
    assert value(samples, name.format("accepted"), source="pool", depth="1") == 3
    # depths that nobody tried are left out
    assert len([key for key in samples if key[0] == name.format("attempted")]) == 2


def test_ray_gets_a_replicas_gauges_as_they_are_and_what_its_counters_grew_by(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []
    record = lambda self, value, tags: told.append((self.info["name"], value, tags))  # noqa: E731
    monkeypatch.setattr(Gauge, "set", record)
    monkeypatch.setattr(Counter, "inc", record)
    metrics = RayMetrics(model="m", replica="r1")
    for steps in (5, 5, 8):
        counts = {"context": SourceStats(2 * steps, steps)}
        metrics.publish(EngineStats(num_requests_running=3, num_steps=steps, by_source=counts))
    tags = {"model_name": "m", "replica": "r1"}
    assert [entry for entry in told if entry[0] == "goose_num_requests_running"] == [
        ("goose_num_requests_running", 3, tags)
    ] * 3
    assert [value for name, value, _ in told if name == "goose_steps"] == [5, 3]
    accepted = [entry for entry in told if entry[0] == "goose_spec_decode_source_accepted_tokens"]
    assert accepted == [(accepted[0][0], grown, {**tags, "source": "context"}) for grown in (5, 3)]
