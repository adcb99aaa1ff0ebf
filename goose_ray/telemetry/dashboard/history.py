"""What a replica did over the last minutes: samples of its counters, and what the samples of many come to over time.

Each replica keeps its own samples, and they end with it. Times are unix times of the replica's machine: where
clocks differ, the replicas' curves are shifted against each other by as much.
"""

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from goose_ray.engine.stats import EngineStats

__all__ = ["BUCKET_S", "HISTORY_S", "Bucket", "History", "Sample", "buckets_of", "rates_of"]

# Seconds of a point of the curves, and how far back they go.
BUCKET_S = 5.0
HISTORY_S = 600.0
# Reports come every few seconds by default, and at any time when somebody asks for one.
_MIN_GAP_S = BUCKET_S / 2
# "Now" is the mean over so many seconds: a step of one sequence should not make the number jump.
_NOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Cumulative counters of one incarnation at one moment."""

    # unix time, seconds
    at: float
    tokens: int
    # trees verified, anchors alone among them
    trees: int
    # source -> (attempted, accepted)
    sources: Mapping[str, tuple[int, int]]


@dataclass(slots=True)
class Bucket:
    """What all replicas did in `BUCKET_S` seconds from `start` on. Shares of a step are counted, so none is whole."""

    start: float
    tokens: float = 0.0
    trees: float = 0.0
    # source -> [attempted, accepted]
    sources: dict[str, list[float]] = field(default_factory=dict)


class History:
    """The samples of one incarnation. May be used by several threads at once."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=math.ceil(HISTORY_S / _MIN_GAP_S) + 1)
        self._lock = threading.Lock()

    def add(self, stats: EngineStats, now: float) -> None:
        """At unix time `now`. What comes too soon after the last sample is left out: the next one says all it said."""
        sources = {name: (counts.attempted, counts.accepted) for name, counts in stats.by_source.items()}
        sample = Sample(now, stats.generation_tokens, stats.num_trees, sources)
        with self._lock:
            if not self._samples or now - self._samples[-1].at >= _MIN_GAP_S:
                self._samples.append(sample)

    def since(self, start: float) -> tuple[Sample, ...]:
        """Those of the time from `start` on, with the one before them, and those that "now" is reckoned from."""
        with self._lock:
            samples = tuple(self._samples)
        if not samples:
            return ()
        start = min(start, samples[-1].at - _NOW_S)
        first = sum(sample.at < start for sample in samples) - 1
        return samples[max(0, first) :]


def buckets_of(histories: Iterable[Sequence[Sample]], *, since: float, until: float) -> list[Bucket]:
    """Whole buckets between `since` and `until`, oldest first, from the first that anything is known of.

    What happened between two samples is spread evenly over the time between them.
    """
    found: dict[int, Bucket] = {}
    for samples in histories:
        for before, after in pairwise(samples):
            _spread(before, after, found)
    first, end = math.ceil(since / BUCKET_S), math.floor(until / BUCKET_S)
    return [found[number] for number in sorted(found) if first <= number < end]


def rates_of(samples: Sequence[Sample]) -> tuple[float, float | None]:
    """Tokens a second and tau of the last seconds; tau is None where nothing was verified."""
    if len(samples) < 2:
        return 0.0, None
    last = samples[-1]
    first = next((sample for sample in reversed(samples) if last.at - sample.at >= _NOW_S), samples[0])
    tokens, trees, seconds = last.tokens - first.tokens, last.trees - first.trees, last.at - first.at
    return (tokens / seconds if seconds > 0 else 0.0), (tokens / trees if trees else None)


def _spread(before: Sample, after: Sample, found: dict[int, Bucket]) -> None:
    seconds = after.at - before.at
    if seconds <= 0:
        # the machine's clock was set back
        return
    for number in range(math.floor(before.at / BUCKET_S), math.ceil(after.at / BUCKET_S)):
        start = number * BUCKET_S
        share = (min(after.at, start + BUCKET_S) - max(before.at, start)) / seconds
        bucket = found.setdefault(number, Bucket(start))
        bucket.tokens += share * (after.tokens - before.tokens)
        bucket.trees += share * (after.trees - before.trees)
        for name, counts in after.sources.items():
            earlier = before.sources.get(name, (0, 0))
            sums = bucket.sources.setdefault(name, [0.0, 0.0])
            for index in (0, 1):
                sums[index] += share * (counts[index] - earlier[index])
