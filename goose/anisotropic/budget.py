"""How large each tree of a step may grow.

*By nodes*: so that a sequence verifies its budget on average. A tree takes every node whose path probability reaches a
threshold, and its best nodes up to a floor anyway. The threshold alone would give the most tokens a node: all sequences
then pay the same price for their last node (one cut through the whole batch). But it starves replies that are hard to
predict, which would then hardly gain from drafts; hence the floor of 0.9 budgets. The threshold is steered so that the
average over steps is the budget.

A reply's latency is counted in steps, and a reply with a high tau has few of them. Its nodes weigh less, and so its
threshold is lower: threshold * 2 / max(2, tau). Found by replaying recordings; so were the constants.

*By time*: so that no node is missing that could be worth its time. Trees are cut afterwards, by `goose.allocation`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.allocation import least_worth
from goose.anisotropic.workspace import MAX_TREE_NODES
from goose.tree import FloatArray

__all__ = ["NodeBudget", "TimeBudget", "TreeLimits"]

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
# An automatic tree takes nodes that are less likely than any drafter offers if they cost nothing, and none that are
# likelier than this is left out unbuilt: what is never built is never found to pay.
_LEAST_WORTH, _MOST_WORTH = 0.002, 0.5
# Tokens that it takes to doubt what is expected, and the part of what was seen that each step forgets.
_TRUST_TOKENS, _TRUST_RATE = 20.0, 0.02


@dataclass(frozen=True, slots=True, eq=False)
class TreeLimits:
    """One entry a sequence."""

    # [num_sequences] int64: nodes it should verify on average, those it takes anyway, and at most; anchor included
    targets: NDArray[np.int64]
    floors: NDArray[np.int64]
    max_nodes: NDArray[np.int64]
    # [num_sequences] float64: least path probability beyond the floor
    thresholds: NDArray[np.float64]

    def of(self, chosen: NDArray[np.bool_] | slice) -> "TreeLimits":
        """Those of the chosen sequences."""
        return TreeLimits(self.targets[chosen], self.floors[chosen], self.max_nodes[chosen], self.thresholds[chosen])

    def replaced(self, chosen: NDArray[np.bool_], other: "TreeLimits") -> "TreeLimits":
        """With the entries of `other` for the chosen sequences."""
        return TreeLimits(
            np.where(chosen, other.targets, self.targets),
            np.where(chosen, other.floors, self.floors),
            np.where(chosen, other.max_nodes, self.max_nodes),
            np.where(chosen, other.thresholds, self.thresholds),
        )


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
        by_target = {target: math.exp(self._log_threshold(target)) for target in set(targets.tolist())}
        thresholds = np.array([by_target[target] for target in targets.tolist()])
        return TreeLimits(
            targets=targets,
            floors=np.rint(_FLOOR * targets).astype(np.int64),
            # A budget of one asks for plain decoding, not for two nodes now and then.
            max_nodes=np.where(targets == 1, 1, _largest(num_sequences, max_nodes)),
            thresholds=thresholds * (_PLAIN_TAU / np.maximum(_PLAIN_TAU, taus)),
        )

    def observe(self, limits: TreeLimits, num_nodes: NDArray[np.int64]) -> None:
        """Raises the threshold of a target whose trees came out larger than it on average, and lowers it otherwise."""
        excess = (num_nodes - limits.targets) / limits.targets
        for target in set(limits.targets.tolist()):
            moved = self._log_threshold(target) + _RATE * float(excess[limits.targets == target].mean())
            self._log_thresholds[target] = min(math.log(_MAX_THRESHOLD), max(math.log(_MIN_THRESHOLD), moved))

    def _log_threshold(self, target: int) -> float:
        start = min(_MAX_START, _START_AT_16 * (16 / target) ** _START_POWER)
        return self._log_thresholds.get(target, math.log(start))


class TimeBudget:
    """Remembers how fast the last step should have been, which is what a second is worth in the next, and what became
    of what was expected.

    Nodes are chosen for what they promise, so those that promise too much are chosen too often; and the fewer nodes
    a batch can afford, the more of its gain hangs on that.
    """

    def __init__(self) -> None:
        # what the last step should have come to, 0 before there was one
        self.tokens_per_second = 0.0
        # accepted tokens of the last steps, as expected and as they came
        self._expected = self._accepted = _TRUST_TOKENS

    @property
    def trust(self) -> float:
        """Part of the expected tokens that was accepted lately, 1 at most."""
        return min(1.0, self._accepted / self._expected)

    def verified(self, expected: float, accepted: int) -> None:
        """What a step was expected to accept, and did. One without drafts takes doubts back a little."""
        self._expected += expected - _TRUST_RATE * (self._expected - _TRUST_TOKENS)
        self._accepted += accepted - _TRUST_RATE * (self._accepted - _TRUST_TOKENS)

    def limits(self, num_sequences: int, step_seconds: FloatArray, max_nodes: int) -> TreeLimits:
        """For automatic sequences. The anchor is expanded in any case, so that there is always something to learn from.

        A second is worth at least what plain decoding would make of it, and half of what the last step did: text that
        is suddenly hard makes it worth less.
        """
        plain = num_sequences / float(step_seconds[min(num_sequences, len(step_seconds) - 1)])
        worth = least_worth(step_seconds, num_sequences, max(plain, self.tokens_per_second / 2))
        ones = np.ones(num_sequences, dtype=np.int64)
        largest = max(2, _largest(num_sequences, max_nodes))
        return TreeLimits(
            targets=ones,
            floors=ones,
            max_nodes=largest * ones,
            thresholds=np.full(num_sequences, min(_MOST_WORTH, max(_LEAST_WORTH, worth))),
        )

    def observe(self, tokens: float, seconds: float) -> None:
        """What the step that was decided on should commit, and how long it should take."""
        self.tokens_per_second = tokens / seconds


def _largest(num_sequences: int, max_nodes: int) -> int:
    return min(MAX_TREE_NODES, max_nodes - num_sequences + 1)
