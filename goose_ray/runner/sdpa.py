"""Attention by PyTorch's own kernels: what runs on the CPU, and the fallback elsewhere.

The rows' keys and values are written to the pool first and read back with the context's, so that a sequence is one
set of slots. Where those lie close together the pool is read in place, the slots of others masked; else they are
gathered. All that does not depend on the layer is made once a step.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from goose.tree import IntArray
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.attention import StepAttention
from goose_ray.runner.kv_pool import KVPool
from goose_ray.runner.visibility import additive_mask, row_visibility

__all__ = ["SdpaBackend", "SdpaStep"]

# Reading foreign slots costs their share of the work, gathering costs a copy of everything: about a third of it.
_MAX_SPAN_RATIO = 1.25
# Up to so many score bytes two plain matrix products beat the blocked kernel, which saves memory traffic beyond.
_MAX_SCORE_BYTES = 1 << 20


class SdpaBackend:
    """The AttentionBackend of this module."""

    def prepare(self, batch: StepBatch, pool: KVPool) -> StepAttention:
        return SdpaStep(batch, pool)


@dataclass(frozen=True, slots=True, eq=False)
class _SequencePlan:
    """How one sequence attends in the layers of one window."""

    # its rows of the batch
    rows: slice
    # [num_keys] slots to gather, or the run of the pool that holds them; None: its own rows are all there is to see
    keys: torch.Tensor | slice | None
    # [1, num_rows, num_keys] additive; None: every key is seen by every row, or causally
    mask: torch.Tensor | None
    causal: bool
    # query heads per key head -> [1, group * num_rows, num_keys]: the mask once for each of them
    packed_masks: dict[int, torch.Tensor] = field(default_factory=dict)


class SdpaStep:
    """The StepAttention of this module."""

    def __init__(self, batch: StepBatch, pool: KVPool) -> None:
        self._batch = batch
        self._pool = pool
        self._dtype = pool.keys[0].dtype
        self._device = pool.keys[0].device
        self._slots: torch.Tensor | slice = _run_of(batch.slots) or self._to_device(batch.slots)
        self._plans: dict[int | None, tuple[_SequencePlan, ...]] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys[self._slots] = key[0].transpose(0, 1)
        values[self._slots] = value[0].transpose(0, 1)
        if sliding_window not in self._plans:
            self._plans[sliding_window] = tuple(self._plan(seq, sliding_window) for seq in self._batch.sequences)
        plans = self._plans[sliding_window]
        if len(plans) == 1:
            return self._attend_one(plans[0], query[0], key, value, keys, values, scaling).transpose(0, 1)[None]
        output = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for plan in plans:
            attended = self._attend_one(plan, query[0, :, plan.rows], key, value, keys, values, scaling)
            output[0, plan.rows] = attended.transpose(0, 1)
        return output

    def _attend_one(
        self,
        plan: _SequencePlan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pool_keys: torch.Tensor,
        pool_values: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        """query [heads, R, key_dim] -> [heads, R, value_dim]"""
        if plan.keys is None:
            keys, values = key[0, :, plan.rows], value[0, :, plan.rows]
        elif isinstance(plan.keys, slice):
            keys, values = pool_keys[plan.keys].transpose(0, 1), pool_values[plan.keys].transpose(0, 1)
        else:
            keys = pool_keys.index_select(0, plan.keys).transpose(0, 1)
            values = pool_values.index_select(0, plan.keys).transpose(0, 1)
        num_heads, num_rows, _ = query.shape
        kv_heads, num_keys, _ = keys.shape
        score_bytes = 4 * num_heads * num_rows * num_keys
        if plan.causal or self._dtype != torch.float32 or self._device.type != "cpu" or score_bytes > _MAX_SCORE_BYTES:
            attended: torch.Tensor = functional.scaled_dot_product_attention(
                query[None],
                keys[None],
                values[None],
                attn_mask=None if plan.mask is None else plan.mask[None],
                is_causal=plan.causal,
                scale=scaling,
                enable_gqa=num_heads != kv_heads,
            )
            return attended[0]
        # Query heads that share a key head stand below each other, so that keys are read once and never repeated.
        group = num_heads // kv_heads
        packed = query.reshape(kv_heads, group * num_rows, -1)
        if plan.mask is None:
            scores = torch.bmm(packed * scaling, keys.transpose(1, 2))
        else:
            if group not in plan.packed_masks:
                plan.packed_masks[group] = plan.mask.repeat(1, group, 1)
            mask = plan.packed_masks[group].expand(kv_heads, -1, -1)
            scores = torch.baddbmm(mask, packed, keys.transpose(1, 2), alpha=scaling)
        return torch.bmm(scores.softmax(-1), values).view(num_heads, num_rows, -1)

    def _plan(self, sequence: SequenceStep, window: int | None) -> _SequencePlan:
        rows = slice(sequence.row_start, sequence.row_end)
        num_rows = sequence.row_end - sequence.row_start
        positions = self._batch.positions[rows]
        context_start = 0
        if window is not None:
            # Nothing below the first row's window is seen by any row.
            context_start = min(max(0, int(positions[0]) - window + 1), len(sequence.context_slots))
        context = sequence.context_slots[context_start:]
        windowed = window is not None and int(positions.max()) >= window
        chain = num_rows == sequence.num_chain
        if len(context) == 0 and chain and not windowed:
            return _SequencePlan(rows, None, None, causal=num_rows > 1)
        own = self._batch.slots[rows]
        num_keys = len(context) + num_rows
        low = min(int(own.min()), int(context.min(initial=self._pool.num_slots)))
        high = max(int(own.max()), int(context.max(initial=0))) + 1
        # A foreign slot may hold the infinity of an overflow, which no mask hides: not with the range of float16.
        in_place = high - low <= num_keys * _MAX_SPAN_RATIO and self._dtype != torch.float16
        if in_place:
            keys: torch.Tensor | slice = slice(low, high)
            context_columns, own_columns, num_columns = context - low, own - low, high - low
        else:
            keys = self._to_device(np.concatenate((context, own)))
            context_columns, own_columns = np.arange(len(context)), np.arange(len(context), num_keys)
            num_columns = num_keys
        if num_rows == 1 and num_columns == num_keys:
            return _SequencePlan(rows, keys, None, causal=False)
        parents = np.maximum(self._batch.parents[rows] - sequence.row_start, -1)
        mask = additive_mask(
            row_visibility(parents, sequence.num_chain),
            positions,
            context_columns=context_columns,
            context_start=context_start,
            own_columns=own_columns,
            num_columns=num_columns,
            window=window if windowed else None,
        )
        return _SequencePlan(rows, keys, self._to_device(mask).to(self._dtype)[None], causal=False)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _run_of(slots: IntArray) -> slice | None:
    """The slice that equals the slots if they are one ascending run."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first != len(slots) - 1 or not (np.diff(slots) == 1).all():
        return None
    return slice(first, last + 1)
