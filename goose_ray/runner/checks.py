"""Whether a step's arrays describe a forward, before anything is computed or written."""

from collections.abc import Sequence

import numpy as np

from goose.tree import IntArray
from goose_ray.engine.step import ModelSpec, SequenceStep, StepBatch

__all__ = ["BatchChecker"]


class BatchChecker:
    """Raises ValueError naming the request, the field and the value of the first fault found."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        # Scratch by slot. `_named` is false between calls.
        self._named = np.zeros(spec.num_slots, dtype=np.bool_)
        self._place = np.zeros(spec.num_slots, dtype=np.int64)

    def check(self, batch: StepBatch) -> None:
        num_rows = len(batch.token_ids)
        if num_rows == 0:
            raise ValueError("a step needs at least one row")
        for name in ("token_ids", "positions", "slots", "parents"):
            _check_indices(name, getattr(batch, name), num_rows)
        _check_range("token_ids", batch.token_ids, self._spec.vocab_size)
        _check_range("positions", batch.positions, self._spec.max_model_len)
        _check_range("slots", batch.slots, self._spec.num_slots)
        if not 0 <= batch.harvest_k <= self._spec.vocab_size:
            raise ValueError(f"harvest_k must be between 0 and {self._spec.vocab_size}, not {batch.harvest_k}")
        row = 0
        for sequence in batch.sequences:
            if sequence.row_start != row or sequence.row_end <= row:
                raise ValueError(
                    f"request {sequence.request_id}: rows {sequence.row_start} to {sequence.row_end} do not follow "
                    f"row {row}, where the sequence before ends"
                )
            row = sequence.row_end
        if row != num_rows:
            raise ValueError(f"the sequences have {row} rows, the arrays {num_rows}")
        self._named[batch.slots] = True
        try:
            if np.count_nonzero(self._named) != num_rows:
                raise ValueError("slots name a slot twice")
            if not (self._contexts_are_sound(batch.sequences, num_rows) and _rows_are_sound(batch)):
                for sequence in batch.sequences:
                    self._check_sequence(batch, sequence)
        finally:
            self._named[batch.slots] = False

    def _contexts_are_sound(self, sequences: Sequence[SequenceStep], num_rows: int) -> bool:
        """Whether `_check_sequence` would find no fault in the contexts; of such as share slots it does not tell. The
        slots of the `num_rows` rows are marked as named.
        """
        contexts = [sequence.context_slots for sequence in sequences]
        if any(context.dtype != np.int64 or context.ndim != 1 for context in contexts):
            return False
        slots = np.concatenate(contexts)
        if not len(slots):
            return True
        if int(slots.min()) < 0 or int(slots.max()) >= self._spec.num_slots:
            return False
        before = self._named[slots]
        self._named[slots] = True
        num_named = np.count_nonzero(self._named)
        self._named[slots] = before
        return bool(num_named == num_rows + len(slots))

    def _check_sequence(self, batch: StepBatch, sequence: SequenceStep) -> None:
        who = f"request {sequence.request_id}: "
        context = sequence.context_slots
        _check_indices(who + "context_slots", context, len(context))
        if len(context):
            _check_range(who + "context_slots", context, self._spec.num_slots)
            if self._named[context].any():
                raise ValueError(f"{who}a row's slot is one of the context's")
            order = np.arange(len(context))
            self._place[context] = order
            if (self._place[context] != order).any():
                raise ValueError(f"{who}context_slots name a slot twice")
        if sequence.output_position < 0:
            raise ValueError(f"{who}output_position must be 0 or more, not {sequence.output_position}")
        num_rows = sequence.row_end - sequence.row_start
        num_drafts = sequence.tree.num_draft_nodes if sequence.tree is not None else 0
        if sequence.num_chain < 1 or num_rows != sequence.num_chain + num_drafts:
            raise ValueError(f"{who}{num_rows} rows are not {sequence.num_chain} chain rows and {num_drafts} drafts")
        anchor = sequence.row_start + sequence.num_chain - 1
        expected = np.arange(sequence.row_start - 1, sequence.row_end - 1)
        expected[0] = -1
        depths = np.arange(num_rows)
        if sequence.tree is not None:
            expected[sequence.num_chain :] = anchor + sequence.tree.parents[1:]
            depths[sequence.num_chain :] = sequence.num_chain - 1 + sequence.tree.depths[1:]
            if (batch.token_ids[anchor : sequence.row_end] != sequence.tree.token_ids).any():
                raise ValueError(f"{who}token_ids differ from its tree's")
        rows = slice(sequence.row_start, sequence.row_end)
        if (batch.parents[rows] != expected).any():
            raise ValueError(f"{who}parents do not follow its chain and tree")
        if (batch.positions[rows] != len(context) + depths).any():
            raise ValueError(f"{who}positions are not context length + depth")


def _rows_are_sound(batch: StepBatch) -> bool:
    """Whether `_check_sequence` would find no fault in rows and trees; for all sequences at once, because those few
    operations a sequence are what most of the check takes.
    """
    sequences = batch.sequences
    trees = [sequence.tree for sequence in sequences if sequence.tree is not None]
    starts = np.array([sequence.row_start for sequence in sequences])
    counts = np.array([sequence.row_end for sequence in sequences]) - starts
    chains = np.array([sequence.num_chain for sequence in sequences])
    drafts = np.array([sequence.tree.num_draft_nodes if sequence.tree is not None else 0 for sequence in sequences])
    if chains.min() < 1 or (counts != chains + drafts).any() or any(s.output_position < 0 for s in sequences):
        return False
    rows = np.arange(batch.num_rows)
    expected = rows - 1
    expected[starts] = -1
    depths = rows - np.repeat(starts, counts)
    if trees:
        has_tree = np.array([sequence.tree is not None for sequence in sequences])
        anchors = np.repeat(starts + chains - 1, counts)
        # The rows of trees, in the order of their nodes.
        nodes = np.flatnonzero((rows >= anchors) & np.repeat(has_tree, counts))
        if (batch.token_ids[nodes] != np.concatenate([tree.token_ids for tree in trees])).any():
            return False
        is_draft = nodes != anchors[nodes]
        nodes = nodes[is_draft]
        expected[nodes] = anchors[nodes] + np.concatenate([tree.parents for tree in trees])[is_draft]
        depths[nodes] = depths[anchors[nodes]] + np.concatenate([tree.depths for tree in trees])[is_draft]
    positions = depths + np.repeat([len(sequence.context_slots) for sequence in sequences], counts)
    return bool((batch.parents == expected).all() and (batch.positions == positions).all())


def _check_indices(name: str, array: IntArray, length: int) -> None:
    if array.dtype != np.int64 or array.shape != (length,):
        raise ValueError(f"{name} must be [{length}] int64, not {list(array.shape)} {array.dtype}")


def _check_range(name: str, array: IntArray, end: int) -> None:
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= end:
        raise ValueError(f"{name} must be between 0 and {end - 1}, not {low if low < 0 else high}")
