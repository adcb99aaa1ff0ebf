"""The engine's gauges, counters and histograms as plain data.

Counters are cumulative since the engine's start; snapshots of several engines merge by addition. Knows no sink:
Prometheus, logs and dashboards read `EngineStats`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from goose_ray.engine.request import FinishReason, SourceStats

__all__ = ["E2E_BOUNDS", "INTER_TOKEN_BOUNDS", "TTFT_BOUNDS", "EngineStats", "Histogram", "add_sources", "merge_stats"]

# Seconds. The bounds of the field's servers, so that dashboards read the same; the last bucket is unbounded.
TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
INTER_TOKEN_BOUNDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
)
E2E_BOUNDS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` observations fell at or below `bounds[i]` and above the bound before; one more count has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def merged(self, other: "Histogram") -> "Histogram":
        """Raises ValueError if the buckets differ."""
        if self.bounds != other.bounds:
            raise ValueError(f"histograms with bounds {self.bounds} and {other.bounds} do not merge")
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)


def empty_histogram(bounds: tuple[float, ...]) -> Histogram:
    return Histogram(bounds, (0,) * (len(bounds) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One engine at one moment. The first four fields and no others are gauges.

    Only committed tokens count as accepted. `accepted_per_position[d - 1]` counts committed draft tokens at depth d.
    """

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    # those that running sequences hold; cached prefixes that nobody uses are not among them
    kv_slots_used: int = 0
    kv_slots_total: int = 0
    # tokens delivered, and prompt tokens of requests whose prompt has been computed, in part or whole by an earlier one
    generation_tokens: int = 0
    prompt_tokens: int = 0
    # prompt tokens of admitted requests, and how many of them were in the prefix cache; recomputation not counted
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    # trees verified, anchors alone among them: one a sequence and step
    num_trees: int = 0
    # trees with at least one draft node, their draft nodes, and how many of those were committed
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    by_source: Mapping[str, SourceStats] = field(default_factory=dict)
    # steps in which drafting failed and plain decoding took its place
    num_draft_errors: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    # rows of all forwards, and wall seconds spent in them
    num_rows: int = 0
    forward_seconds: float = 0.0
    # wall seconds of whole steps, drafting included; where durations are predicted, what had been predicted, and the
    # sum of how far off each prediction was
    step_seconds: float = 0.0
    predicted_step_seconds: float = 0.0
    step_error_seconds: float = 0.0
    # from arrival to the place in the batch, once a request
    queue_seconds: Histogram = field(default_factory=lambda: empty_histogram(TTFT_BOUNDS))
    ttft_seconds: Histogram = field(default_factory=lambda: empty_histogram(TTFT_BOUNDS))
    # one observation a token after the first; the tokens of a step share the time since the last one equally
    inter_token_seconds: Histogram = field(default_factory=lambda: empty_histogram(INTER_TOKEN_BOUNDS))
    e2e_seconds: Histogram = field(default_factory=lambda: empty_histogram(E2E_BOUNDS))
    finished_by_reason: Mapping[FinishReason, int] = field(default_factory=dict)


def merge_stats(stats: Iterable[EngineStats]) -> EngineStats:
    """The sum over engines; gauges add up too. Associative and commutative, with `EngineStats()` as its zero."""
    total = EngineStats()
    for other in stats:
        total = EngineStats(**{f.name: _merged(getattr(total, f.name), getattr(other, f.name)) for f in fields(total)})
    return total


def _merged(a: Any, b: Any) -> Any:
    match a, b:
        case Histogram(), Histogram():
            return a.merged(b)
        case SourceStats(), SourceStats():
            return SourceStats(a.attempted + b.attempted, a.accepted + b.accepted)
        case tuple(), tuple():
            short, long = sorted((a, b), key=len)
            return tuple(x + y for x, y in zip(short, long, strict=False)) + long[len(short) :]
        case Mapping(), Mapping():
            return {k: _merged(a[k], b[k]) if k in a and k in b else a.get(k, b.get(k)) for k in a.keys() | b.keys()}
        case int() | float(), int() | float():
            return a + b
    raise TypeError(f"cannot merge {type(a).__name__} with {type(b).__name__}")


def add_sources(total: dict[str, SourceStats], counts: Mapping[str, tuple[int, int]]) -> None:
    """Adds one step's (attempted, accepted) per source to `total` in place."""
    for name, (attempted, accepted) in counts.items():
        if (before := total.get(name)) is not None:
            attempted, accepted = before.attempted + attempted, before.accepted + accepted
        total[name] = SourceStats(attempted, accepted)
