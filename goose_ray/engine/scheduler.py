"""Which sequences take part in the next forward, with how many rows: continuous batching under two budgets.

Rows. A forward has at most `max_batch_rows`. Every decoding sequence gets its anchor row. Of the rows then left,
waiting prefill may take half (rounded up), or more where the draft trees of the decoding sequences cannot use the
other half; drafts get the rest. So neither starves: a sequence is admitted only where a row is left for it, hence no
more run than there are rows, and one is left whenever a prefill is running.

KV slots. Every running sequence has room for its whole chain, prefill included, before anything else gets any; drafts
use what is then left and never push anyone out. When the chains no longer fit, the sequence admitted last is preempted:
its slots are freed, it goes back to the front of the queue and is recomputed. The oldest sequence is never preempted
for another, and alone it always fits (the engine refuses requests that would not), so it always advances.

Knows nothing about tokens, trees or the model.
"""

from collections import deque
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
    """One step. Decoding sequences come first, then prefill, each in order of admission."""

    sequences: tuple[ScheduledSequence, ...]
    # draft nodes of all trees together, anchors not counted
    max_draft_nodes: int
    preempted: tuple[SequenceState, ...]


class Scheduler:
    """First come, first served. Attaches cached prefixes on admission, releases the slots of the sequences it preempts
    or removes, allocates none.

    `budget` is the number of nodes a sequence's tree usually asks for, anchor included.
    """

    def __init__(self, memory: KVMemory, *, max_batch_rows: int, max_running_requests: int, budget: int) -> None:
        self._memory = memory
        self._max_batch_rows = max_batch_rows
        self._max_running = max_running_requests
        self._budget = budget
        # in order of arrival, but preempted ones first
        self._waiting: deque[SequenceState] = deque()
        # in order of admission
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
        self._waiting.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Takes a sequence out, finished or cancelled, and frees its slots."""
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence, SequenceStatus.FINISHED)

    def schedule(self) -> Schedule:
        """Preempts and admits as needed. Never empty while there are requests."""
        preempted = self._make_room()
        scheduled = [ScheduledSequence(s, 1, True) for s in self._running if s.num_uncomputed == 1]
        rows = self._max_batch_rows - len(scheduled)
        allowance = max((rows + 1) // 2, rows - len(scheduled) * (self._budget - 1))
        for sequence in [s for s in self._running if s.num_uncomputed > 1]:
            num_chain = min(sequence.num_uncomputed, allowance)
            if num_chain:
                scheduled.append(ScheduledSequence(sequence, num_chain, num_chain == sequence.num_uncomputed))
            rows, allowance = rows - num_chain, allowance - num_chain
        while allowance and (admitted := self._admit()):
            num_chain = min(admitted.num_uncomputed, allowance)
            scheduled.append(ScheduledSequence(admitted, num_chain, num_chain == admitted.num_uncomputed))
            rows, allowance = rows - num_chain, allowance - num_chain
        max_draft_nodes = min(rows, self._memory.num_available - self._num_claimed())
        return Schedule(tuple(scheduled), max_draft_nodes, preempted)

    def _num_claimed(self) -> int:
        """Slots that the running sequences need for their chains."""
        return sum(sequence.num_uncomputed for sequence in self._running)

    def _make_room(self) -> tuple[SequenceState, ...]:
        preempted: list[SequenceState] = []
        while self._num_claimed() > self._memory.num_available:
            sequence = self._running.pop()
            self._release(sequence, SequenceStatus.WAITING)
            self._waiting.appendleft(sequence)
            preempted.append(sequence)
        return tuple(preempted)

    def _admit(self) -> SequenceState | None:
        """Moves the first waiting sequence to the running ones if it fits with room to spare.

        To spare is what all would commit if a whole tree of each were accepted, lest the newcomer be preempted at
        once. Alone, that is never more than prompt + max_tokens.
        """
        if not self._waiting or len(self._running) >= self._max_running:
            return None
        first = self._waiting[0]
        # Attached before it is measured: what it shares is then neither claimed nor available. If it has to wait, what
        # it would share counts as just used, and so is still there when its turn comes.
        self._memory.attach(first)
        growth = sum(min(self._budget, sequence.num_remaining) for sequence in (*self._running, first))
        if self._num_claimed() + first.num_uncomputed + growth > self._memory.num_available:
            self._memory.release(first)
            return None
        self._waiting.popleft()
        first.status = SequenceStatus.RUNNING
        self._running.append(first)
        return first

    def _release(self, sequence: SequenceState, status: SequenceStatus) -> None:
        self._memory.release(sequence)
        sequence.status = status
