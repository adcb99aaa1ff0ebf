"""What the last steps were made of: a bounded record for debugging, the debug log and the trace endpoint.

Knows nothing about why a step was composed as it was.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from goose_ray.engine.step import StepBatch, StepOutput

__all__ = ["SequenceRecord", "StepRecord", "StepTrace", "record_step"]


@dataclass(frozen=True, slots=True)
class SequenceRecord:
    """One sequence's rows in a step: `prefill_rows` chain rows before the anchor, `tree_nodes` nodes, anchor included.

    A prefill chunk that stops short of the anchor has no tree nodes. `committed` counts the tokens the step added.
    """

    request_id: str
    prefill_rows: int
    tree_nodes: int
    accepted: int
    committed: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. `rows` is the length of the flattened batch: the sum over its sequences, as there is no padding."""

    step_id: int
    rows: int
    sequences: tuple[SequenceRecord, ...]
    # seconds spent drafting, in the forward with its verification, and in the whole step
    draft_s: float
    forward_s: float
    step_s: float
    # what the whole step was predicted to take, None where nothing predicts
    predicted_s: float | None = None

    def __str__(self) -> str:
        parts = ", ".join(f"{s.request_id}: {s.prefill_rows}p+{s.tree_nodes}t -> {s.committed}" for s in self.sequences)
        times = f"draft {self.draft_s * 1e3:.1f} forward {self.forward_s * 1e3:.1f} step {self.step_s * 1e3:.1f} ms"
        predicted = "" if self.predicted_s is None else f" (predicted {self.predicted_s * 1e3:.1f})"
        return f"step {self.step_id}: {self.rows} rows [{parts}] {times}{predicted}"


def record_step(
    batch: StepBatch,
    output: StepOutput,
    num_committed: Sequence[int],
    *,
    draft_s: float,
    step_s: float,
    predicted_s: float | None,
) -> StepRecord:
    """`num_committed[i]` is the number of tokens that sequence i of the batch got."""
    sequences = []
    for step, path, committed in zip(batch.sequences, output.paths, num_committed, strict=True):
        tree_nodes = step.tree.num_nodes if step.tree is not None else 0
        accepted = min(committed, len(path.accepted_nodes)) if path is not None else 0
        prefill_rows = step.row_end - step.row_start - tree_nodes
        sequences.append(SequenceRecord(step.request_id, prefill_rows, tree_nodes, accepted, committed))
    return StepRecord(batch.step_id, batch.num_rows, tuple(sequences), draft_s, output.forward_s, step_s, predicted_s)


class StepTrace:
    """Ring of the last `capacity` records. Written by the engine's thread, read by any."""

    def __init__(self, capacity: int = 256) -> None:
        self._records: deque[StepRecord] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    def append(self, record: StepRecord) -> None:
        with self._lock:
            self._records.append(record)

    def last(self, count: int | None = None) -> tuple[StepRecord, ...]:
        """The last `count` records, oldest first; all that are kept by default."""
        with self._lock:
            records = tuple(self._records)
        return records if count is None else records[max(0, len(records) - count) :]
