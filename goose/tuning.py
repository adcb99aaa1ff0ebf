"""What trees are tuned to: log-odds offsets of the source groups and a temperature, found from counts of acceptance.

Trees grow by probability: an offset makes the nodes of its group likelier, so that own text grows deeper spines, or
rows of the target wider fans. Levels of counts (cluster, workload, own) stand each on the one before it: the solution
of a level is the prior of the next, so that few counts change little. Tuning changes trees, never outputs. Knows
neither where counts come from nor how a tree is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

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
    offsets, slope = [0.0] * len(GROUPS), 0.0
    total = np.zeros_like(levels[0].sums)
    for counts in levels:
        total += counts.sums
        if counts.num_trees > 0:
            offsets, slope = _level(counts.sums.sum(axis=1).tolist(), offsets, slope)
    temperature = min(_MAX_TEMPERATURE, max(_MIN_TEMPERATURE, 1 + slope))
    by_depth = total[..., (ATTEMPTED, ACCEPTED)].sum(axis=0).tolist()
    accepted = total[..., ACCEPTED].sum(axis=1).tolist()
    num_trees = max(sum(counts.num_trees for counts in levels), 1e-9)
    return TreeTuning(
        # What was found is temperature * z + offset; the model multiplies the offset too.
        offsets=tuple(round(min(_MOST_OFFSET, max(-_MOST_OFFSET, o / temperature)), 3) for o in offsets),
        temperature=round(temperature, 3),
        based_on=tuple(round(counts.attempted, 1) for counts in levels),
        spine_share=round(accepted[0] / max(sum(accepted), 1e-9), 4),
        acceptance=tuple(round(hits / max(tries, 1e-9), 4) for tries, hits in by_depth),
        width=tuple(round(tries / num_trees, 4) for tries, _ in by_depth),
    )


def _level(sums: list[list[float]], offsets: list[float], slope: float) -> tuple[list[float], float]:
    """`sums` [num_groups, NUM_SUMS]. The offsets meet in the slope alone, so they are eliminated one by one."""
    left, right = _TEMPERATURE_STRENGTH, _TEMPERATURE_STRENGTH * slope
    scales, sides = [], []
    for of_group, prior in zip(sums, offsets, strict=True):
        scale, side = of_group[V] + _OFFSET_STRENGTH, of_group[VR] + _OFFSET_STRENGTH * prior
        left += of_group[VZZ] - of_group[VZ] ** 2 / scale
        right += of_group[VZR] - of_group[VZ] * side / scale
        scales.append(scale)
        sides.append(side)
    slope = right / left
    return [
        (side - of_group[VZ] * slope) / scale for of_group, side, scale in zip(sums, sides, scales, strict=True)
    ], slope
