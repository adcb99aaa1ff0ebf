"""Bootstrap intervals of tau over replies, and of ratios between policies on the same replies.

Replies are drawn anew within each benchmark, as many as it has; the percentiles 2.5 and 97.5 of the draws are the
interval. The same draws serve every policy, so that the interval of a ratio is that of paired replies: what makes a
reply easy or hard for both cancels. Replies of one conversation are taken for independent. A benchmark of one reply
adds nothing to the width, so few replies give intervals that are too narrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.replay import ReplayResult

__all__ = ["Draws", "Interval", "macro_tau_of", "ratio_of", "tau_of"]

_NUM_DRAWS = 2000
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its bootstrap 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: NDArray[np.float64]) -> "Interval":
        low, high = np.percentile(draws, _PERCENTILES)
        return cls(value, float(low), float(high))


class Draws:
    """How often each reply occurs in each draw; `sizes` maps benchmarks to their number of replies, all above 0."""

    def __init__(self, sizes: Mapping[str, int], *, seed: int, num_draws: int = _NUM_DRAWS) -> None:
        rng = np.random.default_rng(seed)
        # benchmark -> [num_draws, num_replies]
        self._counts = {name: rng.multinomial(n, np.full(n, 1 / n), num_draws) for name, n in sizes.items()}

    @property
    def benchmarks(self) -> tuple[str, ...]:
        return tuple(self._counts)

    def taus(self, benchmark: str, results: Sequence[ReplayResult]) -> NDArray[np.float64]:
        """[num_draws] float64: committed tokens / steps of the drawn replies."""
        counts = self._counts[benchmark]
        committed = np.array([result.committed for result in results], dtype=np.float64)
        steps = np.array([result.steps for result in results], dtype=np.float64)
        taus: NDArray[np.float64] = (counts @ committed) / (counts @ steps)
        return taus

    def macro_taus(self, results: Mapping[str, Sequence[ReplayResult]]) -> NDArray[np.float64]:
        """[num_draws] float64: means over the benchmarks."""
        macro: NDArray[np.float64] = np.mean([self.taus(name, results[name]) for name in self._counts], axis=0)
        return macro


def tau_of(results: Sequence[ReplayResult]) -> float:
    """All committed tokens over all steps."""
    return sum(result.committed for result in results) / sum(result.steps for result in results)


def macro_tau_of(results: Mapping[str, Sequence[ReplayResult]], draws: Draws) -> Interval:
    """The mean over the benchmarks of `draws`, each of equal weight."""
    value = float(np.mean([tau_of(results[name]) for name in draws.benchmarks]))
    return Interval.of(value, draws.macro_taus(results))


def ratio_of(
    results: Mapping[str, Sequence[ReplayResult]], others: Mapping[str, Sequence[ReplayResult]], draws: Draws
) -> Interval:
    """Macro tau over that of another policy on the same replies."""
    value = macro_tau_of(results, draws).value / macro_tau_of(others, draws).value
    return Interval.of(value, draws.macro_taus(results) / draws.macro_taus(others))
