"""Statistics as data: buckets, merging, what the recorder makes of tokens and time."""

import numpy as np
import pytest
from engine_helpers import make_request
from fakes import FakeTokenizer

from goose.tree import TokenTree
from goose.verify import VerifiedPath
from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.request import SourceStats
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.stats import TTFT_BOUNDS, EngineStats, Histogram, merge_stats
from goose_ray.engine.stats_recorder import StatsRecorder
from goose_ray.engine.trace import StepRecord


def snapshot(recorder: StatsRecorder) -> EngineStats:
    return recorder.snapshot(running=1, waiting=2, slots_used=3, slots_total=4)


def sequence(*, arrived_s: float) -> SequenceState:
    request = make_request("a", (1, 2, 3), max_tokens=20)
    return SequenceState(request, OutputStream(FakeTokenizer(), request.sampling, ()), arrived_s=arrived_s)


def test_histograms_merge_bucket_by_bucket() -> None:
    merged = Histogram((1.0, 2.0), (1, 0, 2), 7.0).merged(Histogram((1.0, 2.0), (0, 3, 1), 9.5))
    assert merged == Histogram((1.0, 2.0), (1, 3, 3), 16.5)
    assert merged.count == 7


def test_histograms_of_other_buckets_do_not_merge() -> None:
    with pytest.raises(ValueError, match="do not merge"):
        Histogram((1.0,), (0, 0)).merged(Histogram((2.0,), (0, 0)))


def test_an_observation_falls_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    recorder = StatsRecorder()
    for seconds in (TTFT_BOUNDS[0], 0.0011, 1e6):
        state = sequence(arrived_s=0.0)
        recorder.record_tokens(state, 1, seconds)
    counts = snapshot(recorder).ttft_seconds.counts
    assert (counts[0], counts[1], counts[-1]) == (1, 1, 1)
    assert sum(counts) == 3


def test_tokens_of_one_step_share_the_time_since_the_last() -> None:
    recorder, state = StatsRecorder(), sequence(arrived_s=10.0)
    recorder.record_tokens(state, 2, 11.0)
    recorder.record_tokens(state, 0, 12.0)
    recorder.record_tokens(state, 4, 13.0)
    stats = snapshot(recorder)
    assert stats.generation_tokens == 6
    assert (stats.ttft_seconds.count, stats.ttft_seconds.sum) == (1, 1.0)
    # The second token came with the first; then two seconds for four tokens.
    assert (stats.inter_token_seconds.count, stats.inter_token_seconds.sum) == (5, 2.0)


def test_a_prompt_is_counted_with_its_first_tree() -> None:
    recorder, state = StatsRecorder(), sequence(arrived_s=0.0)
    for _ in range(3):
        state.computed(np.array([state.num_computed]))
        state.commit(TokenTree.anchor_only(1), VerifiedPath(np.array([], int), np.array([5])), 1)
        recorder.record_tokens(state, 1, 1.0)
    assert snapshot(recorder).prompt_tokens == 3


def test_trees_count_by_position_and_source() -> None:
    recorder = StatsRecorder()
    recorder.record_tree(5, 3, {"context": (4, 3)})
    recorder.record_tree(0, 0, {})
    recorder.record_tree(2, 1, {"context": (1, 1), "transitions": (1, 0)})
    stats = snapshot(recorder)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 7, 4)
    assert stats.accepted_per_position == (2, 1, 1)
    assert stats.by_source == {"context": SourceStats(5, 4), "transitions": SourceStats(1, 0)}


def test_an_aborted_request_says_nothing_about_latency() -> None:
    recorder = StatsRecorder()
    recorder.record_finish("abort", seconds=100.0)
    recorder.record_finish("stop", seconds=2.0)
    stats = snapshot(recorder)
    assert stats.finished_by_reason == {"abort": 1, "stop": 1}
    assert stats.e2e_seconds.sum == 2.0


def some_stats(scale: int) -> EngineStats:
    recorder = StatsRecorder()
    for count in range(1, scale + 1):
        recorder.record_tokens(sequence(arrived_s=0.0), count, 0.25 * count)
        recorder.record_tree(count + 1, count, {f"source {count % 2}": (count, 1)})
        recorder.record_step(StepRecord(0, 10 * count, (), 0.0, 0.5, 0.75, 1.0))
        recorder.record_finish("stop" if count % 2 else "length", seconds=float(count))
    return snapshot(recorder)


def test_merging_is_addition() -> None:
    a, b, c = some_stats(1), some_stats(2), some_stats(5)
    merged = merge_stats([a, b])
    assert (merged.num_requests_running, merged.kv_slots_total) == (2, 8)
    assert merged.generation_tokens == a.generation_tokens + b.generation_tokens
    assert merged.accepted_per_position == (3, 1)
    assert merged.by_source["source 1"] == SourceStats(2, 2)
    assert merged.ttft_seconds.count == 3
    assert (merged.step_seconds, merged.predicted_step_seconds, merged.step_error_seconds) == (2.25, 3.0, 0.75)
    assert merge_stats([a, b, c]) == merge_stats([c, merge_stats([b, a])])
    assert merge_stats([a]) == merge_stats([a, EngineStats()]) == a
