"""Steps made up for measuring: sequences of the same token, over and over, with trees of one level.

What they write and attend to is what a real step does; what they decide is of no interest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.tree import IntArray, TokenTree
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import SequenceStep, StepBatch

__all__ = ["Probe", "chain_batch", "tree_batch"]

_SAMPLING = SamplingParams(max_tokens=2, temperature=0.0)
_TOKEN = 1


@dataclass(frozen=True, slots=True)
class Probe:
    """A made-up sequence; its last token is the anchor."""

    request_id: str
    # [num_tokens - 1] int64
    context_slots: IntArray


def chain_batch(probes: Sequence[Probe], start: int, count: int, *, harvest_k: int) -> StepBatch:
    """Prefill of the tokens from `start` on, `count` of each sequence at most."""
    steps, parents, positions, slots = [], [], [], []
    row = 0
    for probe in probes:
        own = probe.context_slots[start : start + count]
        chain = np.arange(len(own))
        steps.append(_step(probe, row, row + len(own), len(own), probe.context_slots[:start], None))
        parents.append(np.where(chain == 0, -1, row + chain - 1))
        positions.append(start + chain)
        slots.append(own)
        row += len(own)
    return _batch(steps, parents, positions, np.concatenate(slots), harvest_k)


def tree_batch(probes: Sequence[Probe], num_nodes: int, slots: IntArray, *, harvest_k: int) -> StepBatch:
    """A tree of `num_nodes` for each sequence, all drafts below the anchor; `slots` has one entry a row."""
    tree = TokenTree.from_parents([_TOKEN] * num_nodes, [-1] + [0] * (num_nodes - 1))
    steps, parents, positions = [], [], []
    for i, probe in enumerate(probes):
        first = i * num_nodes
        steps.append(_step(probe, first, first + num_nodes, 1, probe.context_slots, tree))
        parents.append(np.where(tree.parents < 0, -1, first + tree.parents))
        positions.append(len(probe.context_slots) + tree.depths)
    return _batch(steps, parents, positions, slots, harvest_k)


def _step(
    probe: Probe, start: int, end: int, num_chain: int, context_slots: IntArray, tree: TokenTree | None
) -> SequenceStep:
    return SequenceStep(
        request_id=probe.request_id,
        row_start=start,
        row_end=end,
        num_chain=num_chain,
        context_slots=context_slots,
        tree=tree,
        sampling=_SAMPLING,
        output_position=0,
        harvest_chain=False,
    )


def _batch(
    steps: Sequence[SequenceStep],
    parents: Sequence[IntArray],
    positions: Sequence[IntArray],
    slots: IntArray,
    harvest_k: int,
) -> StepBatch:
    return StepBatch(
        step_id=0,
        token_ids=np.full(len(slots), _TOKEN),
        positions=np.concatenate(positions),
        slots=slots,
        parents=np.concatenate(parents),
        sequences=tuple(steps),
        harvest_k=harvest_k,
    )
