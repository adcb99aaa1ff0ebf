"""Keys and masks of all sequences at once are those of each for itself."""

import numpy as np
import pytest

from goose.tree import IntArray, TokenTree
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.key_layout import KeyLayout
from goose_ray.runner.visibility import additive_mask, row_visibility

_SAMPLING = SamplingParams(max_tokens=4, temperature=0.0)


def _random_batch(rng: np.random.Generator) -> StepBatch:
    """Sequences with and without context, chain and tree; some lie in runs of the pool, others are scattered."""
    steps, parents, slots = [], [], []
    row, free = 0, 0
    for number in range(int(rng.integers(1, 7))):
        num_context, num_chain = int(rng.integers(0, 30)), int(rng.integers(1, 5))
        num_nodes = int(rng.integers(0, 9))
        tree = None
        chain = np.arange(-1, num_chain - 1)
        if num_nodes:
            up = [-1, *(int(rng.integers(0, node)) for node in range(1, num_nodes))]
            tree = TokenTree.from_parents([0] * num_nodes, up)
            chain = np.concatenate((chain, np.asarray(up[1:], dtype=np.int64) + num_chain - 1))
        stride = int(rng.integers(1, 3))
        own = free + stride * rng.permutation(num_context + len(chain))
        free += stride * len(own) + int(rng.integers(0, 5))
        steps.append(
            SequenceStep(
                request_id=str(number),
                row_start=row,
                row_end=row + len(chain),
                num_chain=num_chain,
                context_slots=own[:num_context],
                tree=tree,
                sampling=_SAMPLING,
                output_position=0,
                harvest_chain=False,
            )
        )
        parents.append(np.where(chain < 0, -1, chain + row))
        slots.append(own[num_context:])
        row += len(chain)
    empty = np.zeros(row, dtype=np.int64)
    return StepBatch(
        step_id=0,
        token_ids=empty,
        positions=empty,
        slots=np.concatenate(slots),
        parents=np.concatenate(parents),
        sequences=tuple(steps),
        harvest_k=0,
    )


def _alone(batch: StepBatch, step: SequenceStep, ratio: float) -> tuple[slice | None, IntArray, np.ndarray]:
    own = batch.slots[step.row_start : step.row_end]
    slots = np.concatenate((step.context_slots, own))
    low, high = int(slots.min()), int(slots.max()) + 1
    run = slice(low, high) if high - low <= ratio * len(slots) else None
    columns = np.arange(len(slots)) if run is None else slots - low
    parents = np.maximum(batch.parents[step.row_start : step.row_end] - step.row_start, -1)
    mask = additive_mask(
        row_visibility(parents, step.num_chain),
        batch.positions[step.row_start : step.row_end],
        context_columns=columns[: len(step.context_slots)],
        context_start=0,
        own_columns=columns[len(step.context_slots) :],
        num_columns=len(slots) if run is None else high - low,
        window=None,
    )
    return run, slots, mask


@pytest.mark.parametrize("ratio", [0.0, 1.25])
def test_a_batch_is_laid_out_as_its_sequences_alone(ratio: float) -> None:
    rng = np.random.default_rng(3)
    kinds = set()
    for _ in range(200):
        batch = _random_batch(rng)
        layout = KeyLayout.of(batch, max_span_ratio=ratio)
        masks = layout.masks
        for i, step in enumerate(batch.sequences):
            run, slots, mask = _alone(batch, step, ratio)
            assert layout.runs[i] == run
            gathered = layout.slots[layout.starts[i] : layout.starts[i + 1]]
            assert gathered.tolist() == ([] if run else slots.tolist())
            assert layout.num_columns[i] == mask.shape[1]
            found, masks = masks[: mask.size].reshape(mask.shape), masks[mask.size :]
            assert (found == mask).all()
            kinds.add((run is None, len(step.context_slots) > 0, step.tree is None))
        assert not len(masks)
    assert len(kinds) == (8 if ratio else 4)
