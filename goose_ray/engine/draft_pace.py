"""When to draft: as long as that has not cost more than it gained, and else as seldom as a small allowance pays for.

The ledger counts in *plain steps*, the time that a step of the same sequences takes without drafts. A step with drafts
is worth the tokens it committed for each sequence, and costs what it took, drafting included; drafts are looked for
while the balance is not below zero. What a batch gains is bounded by what it may hold, so that it is not squandered
over the next thousand steps, and by the noise of few sequences, of which one step says little. So, whatever drafts
promise, decoding stays within the allowance of plain decoding. Knows no trees and no policy.
"""

from dataclasses import dataclass

__all__ = ["DraftPace", "DraftPlan"]

# Of the time, what may go into drafts that gain nothing: in it, text that has become predictable is noticed.
_ALLOWANCE = 0.004
# What can be held, in plain steps of one sequence; a batch of n holds the n-th part of it.
_MOST = 32.0
# What it begins with. Sixteen requests of fifty tokens are as many steps together: more would be felt if it were lost.
_AT_FIRST = 6.0
# No step loses more than so many plain steps: a stall says nothing of drafts.
_WORST = 1.0
# While drafting rests, one step in so many is harvested and learned from: what drafts are made of is kept up, at a part
# of the cost.
_LEARNED_AT_REST = 8


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Of one step: whether drafts are looked for, and whether it is harvested and learned from at once."""

    drafts: bool
    learns: bool


class DraftPace:
    """Begins with a little: what has not been tried is given a chance."""

    def __init__(self) -> None:
        # as a part of the most
        self._balance = _AT_FIRST / _MOST
        self._num_rested = 0

    @property
    def plan(self) -> DraftPlan:
        """Of the next step."""
        drafts = self._balance >= 0.0
        return DraftPlan(drafts, drafts or (self._num_rested + 1) % _LEARNED_AT_REST == 0)

    def drafted(self, *, num_sequences: int, num_committed: int, seconds: float, plain_seconds: float) -> None:
        """A step of so many trees, which took `seconds`, drafting included, and would have taken `plain_seconds` with
        none and nothing drafted.
        """
        self._num_rested = 0
        cost = seconds / plain_seconds
        gain = num_committed / num_sequences - min(cost, num_committed / num_sequences + _WORST)
        self._add(gain + _ALLOWANCE * cost, num_sequences)

    def rested(self, *, num_sequences: int) -> None:
        """A step of so many anchors for which nothing was looked for."""
        self._num_rested += 1
        self._add(_ALLOWANCE, num_sequences)

    def _add(self, plain_steps: float, num_sequences: int) -> None:
        self._balance = min(1.0, self._balance + plain_steps * num_sequences / _MOST)
