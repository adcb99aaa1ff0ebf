"""Whether a step's arrays describe a forward, before anything is computed or written."""

import numpy as np

from goose.jit import inlined, jit, writable
from goose.tree import BoolArray, IntArray
from goose_ray.engine.step import ModelSpec, SequenceStep, StepBatch

__all__ = ["BatchChecker"]


class BatchChecker:
    """Raises ValueError naming the request, the field and the value of the first fault found."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        # Scratch by slot. `_named` is false between calls.
        self._named = np.zeros(spec.num_slots, dtype=np.bool_)
        self._place = np.zeros(spec.num_slots, dtype=np.int64)
        # the sequence that named a slot last, over all calls
        self._seen = np.zeros(spec.num_slots, dtype=np.int64)
        self._num_seen = 0
        # Compiles, so that no request waits for it.
        none = np.empty(0, dtype=np.int64)
        parts, limits = np.empty((0, 6), dtype=np.int64), np.zeros(3, dtype=np.int64)
        _is_sound(none, none, none, none, none, none, none, none, parts, limits, self._named, self._seen, 0)

    def check(self, batch: StepBatch) -> None:
        # One look at all of it; only where something is not as usual is it searched for what that is.
        if not self._is_usual(batch):
            self._search(batch)

    def _is_usual(self, batch: StepBatch) -> bool:
        """Whether `_search` would find no fault."""
        sequences, num_rows = batch.sequences, len(batch.token_ids)
        arrays = (batch.token_ids, batch.positions, batch.slots, batch.parents)
        contexts = [sequence.context_slots for sequence in sequences]
        if any(array.dtype != np.int64 or array.shape != (num_rows,) for array in arrays):
            return False
        if not num_rows or any(context.dtype != np.int64 or context.ndim != 1 for context in contexts):
            return False
        if not 0 <= batch.harvest_k <= self._spec.vocab_size:
            return False
        trees = [sequence.tree for sequence in sequences if sequence.tree is not None]
        none = np.empty(0, dtype=np.int64)
        tree_ids = np.concatenate([none, *(tree.token_ids for tree in trees)])
        tree_parents = np.concatenate([none, *(tree.parents for tree in trees)])
        tree_depths = np.concatenate([none, *(tree.depths for tree in trees)])
        if any(
            len(array) != len(tree_ids) or array.dtype != np.int64 for array in (tree_ids, tree_parents, tree_depths)
        ):
            return False
        parts = [
            (
                sequence.row_start,
                sequence.row_end,
                sequence.num_chain,
                len(sequence.context_slots),
                0 if sequence.tree is None else sequence.tree.num_nodes,
                sequence.output_position,
            )
            for sequence in sequences
        ]
        spec = self._spec
        self._num_seen += len(parts)
        return bool(
            _is_sound(
                writable(batch.token_ids, np.int64),
                writable(batch.positions, np.int64),
                writable(batch.slots, np.int64),
                writable(batch.parents, np.int64),
                np.concatenate(contexts),
                tree_ids,
                tree_parents,
                tree_depths,
                np.array(parts, dtype=np.int64),
                np.array((spec.vocab_size, spec.max_model_len, spec.num_slots), dtype=np.int64),
                self._named,
                self._seen,
                self._num_seen,
            )
        )

    def _search(self, batch: StepBatch) -> None:
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
            for sequence in batch.sequences:
                self._check_sequence(batch, sequence)
        finally:
            self._named[batch.slots] = False

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


@inlined
def _are_slots_apart(
    slots: IntArray, contexts: IntArray, parts: IntArray, named: BoolArray, seen: IntArray, last_seen: int
) -> bool:
    """Of `_is_sound`. Sequences may share slots; one has no slot twice, and none that is written to."""
    are_apart = True
    for row in range(len(slots)):
        are_apart = are_apart and not named[slots[row]]
        named[slots[row]] = True
    place = 0
    for i in range(len(parts)):
        number = last_seen - i
        for _ in range(parts[i, 3]):
            are_apart = are_apart and not named[contexts[place]] and seen[contexts[place]] != number
            seen[contexts[place]] = number
            place += 1
    for row in range(len(slots)):
        named[slots[row]] = False
    return are_apart


@jit
def _is_sound(
    token_ids: IntArray,
    positions: IntArray,
    slots: IntArray,
    parents: IntArray,
    contexts: IntArray,
    tree_ids: IntArray,
    tree_parents: IntArray,
    tree_depths: IntArray,
    parts: IntArray,
    limits: IntArray,
    named: BoolArray,
    seen: IntArray,
    last_seen: int,
) -> bool:
    """Of each sequence `parts` has first row, end of rows, length of chain, of context, nodes and output position;
    contexts and trees lie one after the other. `limits` are vocabulary, model length and slots. `named` [num_slots] is
    false everywhere, before and after; `seen` [num_slots] takes numbers up to `last_seen`, which no call used before.
    """
    num_rows = len(token_ids)
    for row in range(num_rows):
        if not (0 <= token_ids[row] < limits[0] and 0 <= positions[row] < limits[1] and 0 <= slots[row] < limits[2]):
            return False
    for place in range(len(contexts)):
        if not 0 <= contexts[place] < limits[2]:
            return False
    end = first_node = 0
    for i in range(len(parts)):
        start, num_chain, num_context, num_nodes = parts[i, 0], parts[i, 2], parts[i, 3], parts[i, 4]
        if start != end or parts[i, 1] > num_rows or num_chain < 1 or parts[i, 5] < 0:
            return False
        end = parts[i, 1]
        if end - start != num_chain + max(0, num_nodes - 1):
            return False
        for k in range(end - start):
            parent, depth = start + k - 1 if k > 0 else -1, k
            node = k - num_chain + 1
            if num_nodes > 0 and node >= 0:
                if token_ids[start + k] != tree_ids[first_node + node]:
                    return False
                if node > 0:
                    parent = start + num_chain - 1 + tree_parents[first_node + node]
                    depth = num_chain - 1 + tree_depths[first_node + node]
            if parents[start + k] != parent or positions[start + k] != num_context + depth:
                return False
        first_node += num_nodes
    return end == num_rows and _are_slots_apart(slots, contexts, parts, named, seen, last_seen)


def _check_indices(name: str, array: IntArray, length: int) -> None:
    if array.dtype != np.int64 or array.shape != (length,):
        raise ValueError(f"{name} must be [{length}] int64, not {list(array.shape)} {array.dtype}")


def _check_range(name: str, array: IntArray, end: int) -> None:
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= end:
        raise ValueError(f"{name} must be between 0 and {end - 1}, not {low if low < 0 else high}")
