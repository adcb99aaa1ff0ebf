"""Which sequences take part in the next forward, with how many rows: continuous batching under two limits.

Order. A sequence's *rank* is its priority, lower first, then its arrival. By rank sequences are admitted, and the last
in rank is preempted.

Rows. A forward has at most `max_batch_rows`. Every decoding sequence gets its anchor row. Of the rows then left,
waiting prefill may take half (rounded up), or more where the draft trees of the decoding sequences will not use the
other half; drafts get the rest. So neither starves: a sequence is admitted only where a row is left for it, hence no
more run than there are rows, and one is left whenever a prefill is running. Of the prefill's rows half (rounded up) are
for the prompt of the first rank, the others for those of the best priority that have the least left to compute, and
what one side cannot use is the other's. So a short prompt does not wait for a long one, and the first in rank always
advances, at half speed at worst: each prompt comes first some time.

KV slots. Every running sequence has room for its whole chain, prefill included, before anything else gets any; drafts
use what is then left and never push anyone out. When the chains no longer fit, a sequence is preempted: its slots are
freed, it waits again and is recomputed. The first in rank is never preempted for another, and alone it always fits (the
engine refuses requests that would not), so it always advances.

Sharing. A sequence that begins like one whose prompt is just being computed waits until it can be given that beginning.

Knows nothing about tokens, trees or the model.
"""

import itertools
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from goose_ray.engine.kv_memory import KVMemory
from goose_ray.engine.sequence import SequenceState, SequenceStatus

__all__ = ["Schedule", "ScheduledSequence", "Scheduler"]


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """The next `num_chain` rows of a sequence's chain; a tree hangs on the last of them if that is the anchor."""

    sequence: SequenceState
    num_chain: int
    has_tree: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step. Decoding sequences come first, then prefill, each in order of rank."""

    sequences: tuple[ScheduledSequence, ...]
    # draft nodes of all trees together, anchors not counted
    max_draft_nodes: int
    preempted: tuple[SequenceState, ...]


class Scheduler:
    """Attaches cached prefixes on admission, releases the slots of the sequences it preempts or removes, allocates
    none.

    `budget` is the number of nodes a sequence's tree usually asks for, anchor included.
    """

    def __init__(self, memory: KVMemory, *, max_batch_rows: int, max_running_requests: int, budget: int) -> None:
        self._memory = memory
        self._max_batch_rows = max_batch_rows
        self._max_running = max_running_requests
        self._budget = budget
        self._arrivals = itertools.count()
        # both in order of rank
        self._waiting: list[SequenceState] = []
        self._running: list[SequenceState] = []

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_requests(self) -> int:
        return len(self._running) + len(self._waiting)

    def add(self, sequence: SequenceState) -> None:
        sequence.rank = (sequence.request.priority, next(self._arrivals))
        insort(self._waiting, sequence, key=_rank)

    def remove(self, sequence: SequenceState) -> None:
        """Takes a sequence out, finished or cancelled, and frees its slots."""
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence, SequenceStatus.FINISHED)

    def schedule(self, nodes_per_tree: float | None = None) -> Schedule:
        """Preempts and admits as needed. Never empty while there are requests. `nodes_per_tree` is how many a tree
        may be expected to use, where that is known better than from the budget.
        """
        preempted = self._make_room()
        scheduled = [ScheduledSequence(s, 1, True) for s in self._running if s.num_uncomputed == 1]
        rows = self._max_batch_rows - len(scheduled)
        tree_nodes = self._budget if nodes_per_tree is None else min(self._budget, nodes_per_tree)
        allowance = max((rows + 1) // 2, rows - math.ceil(len(scheduled) * (tree_nodes - 1)))
        prefilling = [s for s in self._running if s.num_uncomputed > 1]
        prefilling = sorted((*prefilling, *self._admit(prefilling, allowance)), key=_rank)
        for sequence, num_chain in zip(prefilling, _shares(prefilling, allowance), strict=True):
            if num_chain:
                scheduled.append(ScheduledSequence(sequence, num_chain, num_chain == sequence.num_uncomputed))
                rows -= num_chain
        max_draft_nodes = min(rows, self._memory.num_available - self._num_claimed())
        return Schedule(tuple(scheduled), max_draft_nodes, preempted)

    def _num_claimed(self) -> int:
        """Slots that the running sequences need for their chains."""
        return sum(sequence.num_uncomputed for sequence in self._running)

    def _make_room(self) -> tuple[SequenceState, ...]:
        preempted: list[SequenceState] = []
        while self._num_claimed() > self._memory.num_available:
            if doubled := [sequence for sequence in self._running if sequence.num_doubled]:
                self._memory.share_all(doubled[-1])
                continue
            sequence = self._running.pop()
            self._release(sequence, SequenceStatus.WAITING)
            insort(self._waiting, sequence, key=_rank)
            preempted.append(sequence)
        return tuple(preempted)

    def _admit(self, prefilling: Sequence[SequenceState], allowance: int) -> list[SequenceState]:
        """Moves waiting sequences to the running ones, in order of rank, up to the first that does not fit."""
        admitted: list[SequenceState] = []
        for sequence in self._waiting:
            if len(self._running) >= self._max_running or len(prefilling) + len(admitted) >= allowance:
                break
            # Attached before it is measured: what it shares is then neither claimed nor available. If it has to wait,
            # what it would share counts as just used, and so is still there when its turn comes.
            self._memory.attach(sequence)
            if any(self._is_worth_waiting(sequence, for_=other) for other in (*prefilling, *admitted)):
                self._memory.release(sequence)
            elif self._fits(sequence):
                insort(self._running, sequence, key=_rank)
                admitted.append(sequence)
            else:
                self._memory.release(sequence)
                break
        for sequence in admitted:
            self._waiting.remove(sequence)
            sequence.status = SequenceStatus.RUNNING
        return admitted

    def _fits(self, sequence: SequenceState) -> bool:
        """With room to spare: for what all would commit if a whole tree of each were accepted, lest the newcomer be
        preempted at once. Alone, that is never more than prompt + max_tokens.
        """
        growth = sum(min(self._budget, other.num_remaining) for other in (*self._running, sequence))
        return self._num_claimed() + sequence.num_uncomputed + growth <= self._memory.num_available

    def _is_worth_waiting(self, sequence: SequenceState, *, for_: SequenceState) -> bool:
        return sequence.request.priority >= for_.request.priority and self._memory.will_share(sequence, for_)

    def _release(self, sequence: SequenceState, status: SequenceStatus) -> None:
        self._memory.release(sequence)
        sequence.status = status


def _rank(sequence: SequenceState) -> tuple[int, int]:
    return sequence.rank


def _shares(prefilling: Sequence[SequenceState], allowance: int) -> list[int]:
    """Rows of each prompt; they are in order of rank."""
    if not prefilling:
        return []
    wanted = [sequence.num_uncomputed for sequence in prefilling]
    shares = [0] * len(wanted)
    shares[0] = min(wanted[0], allowance - allowance // 2)
    left = allowance - shares[0]
    by_length = sorted(
        range(1, len(wanted)), key=lambda i: (prefilling[i].request.priority, wanted[i], prefilling[i].rank)
    )
    for i in (*by_length, 0):
        more = min(wanted[i] - shares[i], left)
        shares[i] += more
        left -= more
    return shares
