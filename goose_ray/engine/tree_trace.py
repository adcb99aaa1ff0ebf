"""The trees of the last steps, for drawings: one tree a step, whose parts came from whom and what was accepted of it.

Knows no texts. Token ids are kept out of the records unless they are wanted: they are what users wrote and read.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from goose.observation import TreeOutcome

__all__ = ["TreeRecord", "TreeTrace"]


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """One verified tree. Of every tuple but `accepted`: one entry a node, the anchor first, parents before children."""

    step_id: int
    # -1 for the anchor
    parents: tuple[int, ...]
    # bit s is set if source number s proposed the node, 0 for the anchor
    sources: tuple[int, ...]
    # predicted P(accepted | parent reached), 1 where nothing was predicted
    probs: tuple[float, ...]
    # nodes of the committed path from the anchor down, without it
    accepted: tuple[int, ...]
    # None where ids are not to be shown
    token_ids: tuple[int, ...] | None


class TreeTrace:
    """Ring of the last `capacity` trees with a draft node. Written by the engine's thread, read by any.

    A step costs one append: what is kept is the outcome itself, and records are made when they are asked for.
    """

    def __init__(self, *, with_tokens: bool, capacity: int = 8) -> None:
        self._with_tokens = with_tokens
        self._kept: deque[tuple[int, TreeOutcome]] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    def observe(self, step_id: int, outcomes: Sequence[TreeOutcome]) -> None:
        """Takes one of the step's trees, another sequence's each step."""
        if not outcomes:
            return
        outcome = outcomes[step_id % len(outcomes)]
        if outcome.tree.num_draft_nodes:
            with self._lock:
                self._kept.append((step_id, outcome))

    def last(self, count: int | None = None) -> tuple[TreeRecord, ...]:
        """The last `count` trees, oldest first; all that are kept by default."""
        with self._lock:
            kept = tuple(self._kept)
        return tuple(self._record(*entry) for entry in (kept if count is None else kept[max(0, len(kept) - count) :]))

    def _record(self, step_id: int, outcome: TreeOutcome) -> TreeRecord:
        tree = outcome.tree
        return TreeRecord(
            step_id=step_id,
            parents=tuple(tree.parents.tolist()),
            sources=tuple(tree.sources.tolist()),
            probs=tuple(tree.probs.tolist()),
            accepted=tuple(outcome.accepted_nodes.tolist()),
            token_ids=tuple(tree.token_ids.tolist()) if self._with_tokens else None,
        )
