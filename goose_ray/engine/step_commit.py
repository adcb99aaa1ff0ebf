"""What of a step stays: slots kept and given back, sequences advanced, and what drafting may learn from it.

Knows no client, no statistics and no speculator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.observation import Harvest, TreeOutcome
from goose_ray.engine.batch import harvest_of, kept_rows
from goose_ray.engine.delivery import Delivery
from goose_ray.engine.kv_memory import KVMemory
from goose_ray.engine.scheduler import ScheduledSequence
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.step import StepBatch, StepOutput

__all__ = ["CommittedStep", "commit_step"]


@dataclass(frozen=True, slots=True, eq=False)
class CommittedStep:
    # the sequences that had a tree, with what reaches their clients and what became of their trees
    advanced: Sequence[tuple[SequenceState, Delivery]]
    outcomes: Sequence[TreeOutcome]
    harvest: Harvest | None


def commit_step(
    scheduled: Sequence[ScheduledSequence],
    batch: StepBatch,
    result: StepOutput,
    deliveries: Sequence[Delivery | None],
    memory: KVMemory,
) -> CommittedStep:
    """Changes sequences and memory: the rows' slots are some sequence's or free again."""
    keep = kept_rows(batch, result.paths)
    memory.free(batch.slots[~keep])
    harvest = None
    if result.harvest is not None:
        harvest = harvest_of(batch, scheduled, result.harvest, keep)
    # Nodes of a path ascend, so the kept slots are in position order.
    kept_slots = batch.slots[keep]
    ends = np.cumsum(keep)[[step.row_end - 1 for step in batch.sequences]].tolist()
    advanced: list[tuple[SequenceState, Delivery]] = []
    outcomes: list[TreeOutcome] = []
    for entry, step, path, delivery, start, end in zip(
        scheduled, batch.sequences, result.paths, deliveries, [0, *ends[:-1]], ends, strict=True
    ):
        entry.sequence.computed(kept_slots[start:end])
        if step.tree is not None and path is not None and delivery is not None:
            outcomes.append(entry.sequence.commit(step.tree, path, delivery.num_committed))
            advanced.append((entry.sequence, delivery))
        if step.num_chain > 1:
            memory.publish(entry.sequence)
    return CommittedStep(advanced, outcomes, harvest)
