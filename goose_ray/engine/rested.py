"""What requests commit while nothing is drafted for them, kept back until somebody wants to know of it.

To tell a speculator of a step costs a batch about a millisecond, whatever the step was; of several at once it costs
little more. Knows no speculator.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from goose.observation import TreeOutcome

__all__ = ["RestedOutcomes"]


class RestedOutcomes:
    """By request. Outcomes of one request come in the order of its steps, and are without drafts."""

    def __init__(self) -> None:
        self._kept: dict[str, list[TreeOutcome]] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, outcome: TreeOutcome) -> None:
        self._kept.setdefault(outcome.request_id, []).append(outcome)

    def joined(self, outcome: TreeOutcome) -> TreeOutcome:
        """The outcome, with all that was kept of its request before it; it is kept no longer."""
        earlier = self._kept.pop(outcome.request_id, None)
        return outcome if earlier is None else _joined([*earlier, outcome])

    def take(self, request_ids: Sequence[str]) -> list[TreeOutcome]:
        """All that is kept of these requests, and kept no longer; one outcome each, none for those without any."""
        return [_joined(self._kept.pop(name)) for name in request_ids if name in self._kept]

    def take_all(self) -> list[TreeOutcome]:
        return self.take(list(self._kept))


def _joined(outcomes: Sequence[TreeOutcome]) -> TreeOutcome:
    last = outcomes[-1]
    if len(outcomes) == 1:
        return last
    committed_ids = np.concatenate([outcome.committed_ids for outcome in outcomes])
    return replace(last, committed_ids=committed_ids, num_earlier=len(committed_ids) - len(last.committed_ids))
