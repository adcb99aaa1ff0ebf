"""What trees are tuned to: log-odds offsets of the source groups and a temperature, found from counts of acceptance.

Trees grow by probability: an offset makes the nodes of its group likelier, so that own text grows deeper spines, or
rows of the target wider fans. Levels of counts (cluster, workload, own) stand each on the one before it: the solution
of a level is the prior of the next, so that few counts change little. Tuning changes trees, never outputs. Knows
neither where counts come from nor how a tree is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from goose.tuning_counts import ACCEPTED, ATTEMPTED, DEPTHS, GROUPS, VR, VZ, VZR, VZZ, TuningCounts, V

__all__ = ["TreeTuning", "solve"]

# What a level's solution is worth to the next, as sums of v and of v z^2; four nodes at even odds have v 1.
_OFFSET_STRENGTH, _TEMPERATURE_STRENGTH = 50.0, 200.0
_MOST_OFFSET = 2.0
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.6, 1.6
# Moves smaller than these change no tree worth mentioning.
_SAME_OFFSET, _SAME_TEMPERATURE = 0.03, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeTuning:
    """Plain numbers. The default leaves trees as they are."""

    # grows with each change of one replica's tuning; 0: never tuned
    version: int = 0
    # by GROUPS: added to a candidate's logit before temperature
    offsets: tuple[float, ...] = (0.0,) * len(GROUPS)
    temperature: float = 1.0
    # attempts, weighted by age, that each level had: cluster, workload, own
    based_on: tuple[float, ...] = (0.0, 0.0, 0.0)
    # for information: part of the accepted tokens that were copied from a text (the spine's share), and by DEPTHS the
    # acceptance of reached nodes and how many a tree had there
    spine_share: float = 0.0
    acceptance: tuple[float, ...] = (0.0,) * len(DEPTHS)
    width: tuple[float, ...] = (0.0,) * len(DEPTHS)

    def __post_init__(self) -> None:
        """Raises ValueError for what no tree could be built with."""
        numbers = (*self.offsets, self.temperature)
        if len(self.offsets) != len(GROUPS) or not np.isfinite(numbers).all() or self.temperature <= 0:
            raise ValueError(f"a tuning needs {len(GROUPS)} finite offsets and a temperature above 0, not {numbers}")

    def is_near(self, other: "TreeTuning") -> bool:
        """Whether trees would hardly tell the two apart."""
        apart = max(abs(a - b) for a, b in zip(self.offsets, other.offsets, strict=True))
        return apart < _SAME_OFFSET and abs(self.temperature - other.temperature) < _SAME_TEMPERATURE

    def with_version(self, version: int) -> "TreeTuning":
        return replace(self, version=version)


def solve(levels: Sequence[TuningCounts]) -> TreeTuning:
    """The tuning that the counts ask for, the widest level first; no count may be in two levels.

    Each level minimises the weighted squares of its working responses against `offset + (temperature - 1) z`, plus the
    distance from the level before at its strength: a ridge regression of four unknowns.
    """
    solution = np.zeros(len(GROUPS) + 1)
    for counts in levels:
        solution = _level(counts, solution)
    total = levels[0]
    for counts in levels[1:]:
        total = total + counts
    hits = total.sums[..., ACCEPTED]
    attempts = total.sums[..., ATTEMPTED].sum(axis=0)
    # What was found is temperature * z + offset; the model multiplies the offset too.
    temperature = float(np.clip(1 + solution[-1], _MIN_TEMPERATURE, _MAX_TEMPERATURE))
    offsets = np.clip(solution[:-1] / temperature, -_MOST_OFFSET, _MOST_OFFSET)
    return TreeTuning(
        offsets=tuple(round(offset, 3) for offset in offsets.tolist()),
        temperature=round(temperature, 3),
        based_on=tuple(round(counts.attempted, 1) for counts in levels),
        spine_share=round(float(hits[0].sum() / max(hits.sum(), 1e-9)), 4),
        acceptance=_rounded(hits.sum(axis=0) / np.maximum(attempts, 1e-9)),
        width=_rounded(attempts / max(total.num_trees, 1e-9)),
    )


def _level(counts: TuningCounts, prior: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = counts.sums.sum(axis=1)
    system = np.diag([_OFFSET_STRENGTH] * len(GROUPS) + [_TEMPERATURE_STRENGTH])
    right = np.diag(system) * prior
    groups = np.arange(len(GROUPS))
    system[groups, groups] += sums[:, V]
    system[groups, -1] += sums[:, VZ]
    system[-1, groups] += sums[:, VZ]
    system[-1, -1] += sums[:, VZZ].sum()
    right[:-1] += sums[:, VR]
    right[-1] += sums[:, VZR].sum()
    solution: NDArray[np.float64] = np.linalg.solve(system, right).astype(np.float64)
    return solution


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values.tolist())
