"""The mutable side of `EngineStats`: what the engine's thread counts as it goes."""

from bisect import bisect_left
from collections.abc import Mapping

from goose_ray.engine.request import FinishReason, SourceStats
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.stats import E2E_BOUNDS, INTER_TOKEN_BOUNDS, TTFT_BOUNDS, EngineStats, Histogram
from goose_ray.engine.trace import StepRecord

__all__ = ["StatsRecorder"]


class _HistogramRecorder:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._sum)


class StatsRecorder:
    def __init__(self) -> None:
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.num_trees = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_draft_errors = 0
        self.num_preemptions = 0
        self.num_steps = 0
        self.num_rows = 0
        self.forward_seconds = 0.0
        self.step_seconds = 0.0
        self.predicted_step_seconds = 0.0
        self.step_error_seconds = 0.0
        self._queue = _HistogramRecorder(TTFT_BOUNDS)
        self._ttft = _HistogramRecorder(TTFT_BOUNDS)
        self._inter_token = _HistogramRecorder(INTER_TOKEN_BOUNDS)
        self._e2e = _HistogramRecorder(E2E_BOUNDS)
        self._accepted_per_position: list[int] = []
        # source -> attempted, accepted
        self._by_source: dict[str, list[int]] = {}
        self._finished: dict[FinishReason, int] = {}

    def record_step(self, record: StepRecord) -> None:
        self.num_steps += 1
        self.num_rows += record.rows
        self.forward_seconds += record.forward_s
        self.step_seconds += record.step_s
        if record.predicted_s is not None:
            self.predicted_step_seconds += record.predicted_s
            self.step_error_seconds += abs(record.predicted_s - record.step_s)

    def record_admission(self, sequence: SequenceState, now_s: float) -> None:
        """Of a sequence in the batch; counts its prompt once, however often it is admitted again."""
        if sequence.num_cached is not None:
            return
        sequence.num_cached = min(sequence.num_computed, sequence.num_prompt)
        sequence.queued_s = now_s - sequence.arrived_s
        self._queue.observe(sequence.queued_s)
        if sequence.prefix is not None:
            self.prefix_cache_queries += sequence.num_prompt
            self.prefix_cache_hits += sequence.num_cached

    def record_tree(self, num_draft_nodes: int, num_accepted: int, by_source: Mapping[str, tuple[int, int]]) -> None:
        """One verified tree; `by_source` has (attempted, accepted) of each source that had a part in it."""
        self.num_trees += 1
        self.num_drafts += num_draft_nodes > 0
        self.num_draft_tokens += num_draft_nodes
        self.num_accepted_tokens += num_accepted
        missing = num_accepted - len(self._accepted_per_position)
        if missing > 0:
            self._accepted_per_position.extend([0] * missing)
        for position in range(num_accepted):
            self._accepted_per_position[position] += 1
        for name, (attempted, accepted) in by_source.items():
            total = self._by_source.setdefault(name, [0, 0])
            total[0] += attempted
            total[1] += accepted

    def record_tokens(self, sequence: SequenceState, count: int, now_s: float) -> None:
        """A step of `sequence` that delivered `count` tokens. Sets the time of its last token."""
        if sequence.num_steps == 1:
            self.prompt_tokens += sequence.num_prompt
        if not count:
            return
        self.generation_tokens += count
        if sequence.last_token_s is None:
            if not sequence.request.committed_ids:
                self._ttft.observe(now_s - sequence.arrived_s)
            self._inter_token.observe(0.0, count - 1)
        else:
            self._inter_token.observe((now_s - sequence.last_token_s) / count, count)
        sequence.last_token_s = now_s

    def record_finish(self, reason: FinishReason, *, seconds: float) -> None:
        """`seconds` since the request arrived; what is aborted says nothing about latency."""
        self._finished[reason] = self._finished.get(reason, 0) + 1
        if reason != "abort":
            self._e2e.observe(seconds)

    def snapshot(self, *, running: int, waiting: int, slots_used: int, slots_total: int) -> EngineStats:
        return EngineStats(
            num_requests_running=running,
            num_requests_waiting=waiting,
            kv_slots_used=slots_used,
            kv_slots_total=slots_total,
            generation_tokens=self.generation_tokens,
            prompt_tokens=self.prompt_tokens,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
            num_trees=self.num_trees,
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            accepted_per_position=tuple(self._accepted_per_position),
            by_source={name: SourceStats(*counts) for name, counts in self._by_source.items()},
            num_draft_errors=self.num_draft_errors,
            num_preemptions=self.num_preemptions,
            num_steps=self.num_steps,
            num_rows=self.num_rows,
            forward_seconds=self.forward_seconds,
            step_seconds=self.step_seconds,
            predicted_step_seconds=self.predicted_step_seconds,
            step_error_seconds=self.step_error_seconds,
            queue_seconds=self._queue.snapshot(),
            ttft_seconds=self._ttft.snapshot(),
            inter_token_seconds=self._inter_token.snapshot(),
            e2e_seconds=self._e2e.snapshot(),
            finished_by_reason=dict(self._finished),
        )
