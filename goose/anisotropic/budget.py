"""How large each tree of a step may grow, so that a sequence verifies its budget on average.

A tree takes every node whose path probability reaches a threshold, and its best nodes up to a floor anyway. The
threshold alone would give the most tokens a node: all sequences then pay the same price for their last node (one cut
through the whole batch). But it starves replies that are hard to predict, which would then hardly gain from drafts;
hence the floor of 0.9 budgets. The threshold is steered so that the average over steps is the budget.

A reply's latency is counted in steps, and a reply with a high tau has few of them. Its nodes weigh less, and so its
threshold is lower: threshold * 2 / max(2, tau). Found by replaying recordings; so were the constants.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.workspace import MAX_TREE_NODES

__all__ = ["NodeBudget", "TreeLimits"]

# Part of the target that a tree takes anyway.
_FLOOR = 0.9
# Where the threshold came to rest on recordings: 0.6 at 16 nodes, and falling with the target to this power.
_START_AT_16, _START_POWER, _MAX_START = 0.6, 1.5, 0.9
# Of the logarithm of the threshold, a step in which the average tree is twice the target.
_RATE = 0.05
# Above 1 only replies of a high tau still grow beyond the floor.
_MIN_THRESHOLD, _MAX_THRESHOLD = 1e-4, 20.0
# Replies of a lower tau than this pay the full price.
_PLAIN_TAU = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class TreeLimits:
    """One entry a sequence."""

    # [num_sequences] int64: nodes it should verify on average, those it takes anyway, and at most; anchor included
    targets: NDArray[np.int64]
    floors: NDArray[np.int64]
    max_nodes: NDArray[np.int64]
    # [num_sequences] float64: least path probability beyond the floor
    thresholds: NDArray[np.float64]


class NodeBudget:
    """One threshold for each target that occurs, all in one controller."""

    def __init__(self) -> None:
        # target -> logarithm of the threshold
        self._log_thresholds: dict[int, float] = {}

    def limits(self, budgets: NDArray[np.int64], taus: NDArray[np.float64], max_nodes: int) -> TreeLimits:
        """`budgets` and `taus` have one entry a sequence; `max_nodes`, at least one each, is for all together.

        If it is less than the budgets' sum, everyone's target is lowered, and the threshold follows.
        """
        num_sequences = len(budgets)
        targets = np.minimum(budgets, max_nodes // num_sequences)
        thresholds = np.exp([self._log_threshold(target) for target in targets.tolist()])
        largest = min(MAX_TREE_NODES, max_nodes - num_sequences + 1)
        return TreeLimits(
            targets=targets,
            floors=np.rint(_FLOOR * targets).astype(np.int64),
            # A budget of one asks for plain decoding, not for two nodes now and then.
            max_nodes=np.where(targets == 1, 1, largest),
            thresholds=thresholds * (_PLAIN_TAU / np.maximum(_PLAIN_TAU, taus)),
        )

    def observe(self, limits: TreeLimits, num_nodes: NDArray[np.int64]) -> None:
        """Raises the threshold of a target whose trees came out larger than it on average, and lowers it otherwise."""
        excess = (num_nodes - limits.targets) / limits.targets
        for target in np.unique(limits.targets).tolist():
            moved = self._log_threshold(target) + _RATE * float(excess[limits.targets == target].mean())
            self._log_thresholds[target] = min(math.log(_MAX_THRESHOLD), max(math.log(_MIN_THRESHOLD), moved))

    def _log_threshold(self, target: int) -> float:
        start = min(_MAX_START, _START_AT_16 * (16 / target) ** _START_POWER)
        return self._log_thresholds.get(target, math.log(start))
