"""Attention by PyTorch's own kernel: what runs on the CPU, and the fallback elsewhere.

The rows' keys and values are written to the pool first and read back with the context's, so that a sequence is one
set of slots. Where those lie close together the pool is read in place, the slots of others masked; else they are
gathered. All that does not depend on the layer is made once a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from goose.tree import IntArray
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.attention import StepAttention
from goose_ray.runner.key_layout import KeyLayout
from goose_ray.runner.kv_pool import KVPool
from goose_ray.runner.visibility import additive_mask, row_visibility

__all__ = ["SdpaBackend", "SdpaStep"]

# Reading foreign slots costs their share of the work, gathering about a third to a half of it.
_MAX_SPAN_RATIO = 1.25
# Up to so many rows the query heads of one key head stand below each other, so that its keys are read once. Beyond,
# the product hides the reading, and the mask repeated for each of them would be large.
_MAX_PACKED_ROWS = 16
# Up to so many rows the sequences are planned together: what a row sees of all others is then worked out at once.
_MOST_ROWS_TOGETHER = 256


class Scratch:
    """Memory for gathered keys and values, kept: fresh pages would cost up to three times the gathering itself."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def gather(self, name: str, pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """pool [heads, num_slots, dim], slots [n] -> [heads, n, dim], valid until the next call with that name."""
        heads, _, dim = pool.shape
        size = heads * len(slots) * dim
        if name not in self._buffers or len(self._buffers[name]) < size:
            self._buffers[name] = pool.new_empty(2 * size)
        gathered = self._buffers[name][:size].view(heads, len(slots), dim)
        return torch.index_select(pool, 1, slots, out=gathered)


class SdpaBackend:
    """The AttentionBackend of this module."""

    def __init__(self) -> None:
        self._scratch = Scratch()

    def prepare(self, batch: StepBatch, pool: KVPool) -> StepAttention:
        return SdpaStep(batch, pool, self._scratch)


@dataclass(frozen=True, slots=True, eq=False)
class _SequencePlan:
    """How one sequence attends in the layers of one window."""

    # its rows of the batch
    rows: slice
    # [num_keys] slots to gather, or the run of the pool that holds them; None: its own rows are all there is to see
    keys: torch.Tensor | slice | None
    # [1, 1, num_rows, num_keys] additive; None: every key is seen by every row, or causally
    mask: torch.Tensor | None
    causal: bool
    # query heads per key head -> [1, 1, group * num_rows, num_keys]: the mask once for each of them
    packed_masks: dict[int, torch.Tensor] = field(default_factory=dict)

    def packed_mask(self, group: int) -> torch.Tensor | None:
        if self.mask is None:
            return None
        if group not in self.packed_masks:
            self.packed_masks[group] = self.mask.repeat(1, 1, group, 1)
        return self.packed_masks[group]


class SdpaStep:
    """The StepAttention of this module."""

    def __init__(self, batch: StepBatch, pool: KVPool, scratch: Scratch) -> None:
        self._batch = batch
        self._pool = pool
        self._scratch = scratch
        self._dtype = pool.keys[0].dtype
        self._device = pool.keys[0].device
        self._slots: torch.Tensor | slice = _run_of(batch.slots) or self._to_device(batch.slots)
        # A foreign slot may hold the infinity of an overflow, which no mask hides: not with the range of float16.
        self._max_span_ratio = 0.0 if self._dtype == torch.float16 else _MAX_SPAN_RATIO
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
        softcap: float | None = None,
    ) -> torch.Tensor:
        pool_keys, pool_values = self._pool.keys[layer], self._pool.values[layer]
        pool_keys[:, self._slots] = key[0]
        pool_values[:, self._slots] = value[0]
        plans = self.plans(sliding_window)
        output: torch.Tensor | None = None
        for plan in plans:
            if plan.keys is None:
                keys, values = key[0, :, plan.rows], value[0, :, plan.rows]
            elif isinstance(plan.keys, slice):
                keys, values = pool_keys[:, plan.keys], pool_values[:, plan.keys]
            else:
                keys = self._scratch.gather("keys", pool_keys, plan.keys)
                values = self._scratch.gather("values", pool_values, plan.keys)
            attended = _attend(plan, query[:, :, plan.rows], keys[None], values[None], scaling, softcap)
            if len(plans) == 1:
                return attended
            if output is None:
                output = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
            output[:, plan.rows] = attended
        assert output is not None
        return output

    def plans(self, window: int | None) -> tuple[_SequencePlan, ...]:
        """One a sequence, for the layers of that window; made when first asked for."""
        if window is not None and int(self._batch.positions.max()) < window:
            window = None
        if window not in self._plans:
            if window is None and self._batch.num_rows <= _MOST_ROWS_TOGETHER:
                self._plans[window] = tuple(self._plans_together())
            else:
                self._plans[window] = tuple(self._plan(sequence, window) for sequence in self._batch.sequences)
        return self._plans[window]

    def _plans_together(self) -> Iterator[_SequencePlan]:
        """As `_plan` without a window, for all sequences in one go."""
        layout = KeyLayout.of(self._batch, max_span_ratio=self._max_span_ratio)
        slots, masks = self._to_device(layout.slots), self._to_device(layout.masks).to(self._dtype)
        counts = [sequence.row_end - sequence.row_start for sequence in self._batch.sequences]
        of_each = masks.split_with_sizes([r * c for r, c in zip(counts, layout.num_columns, strict=True)])
        for i, sequence in enumerate(self._batch.sequences):
            rows, num_rows = slice(sequence.row_start, sequence.row_end), counts[i]
            num_keys = len(sequence.context_slots) + num_rows
            if num_keys == sequence.num_chain:
                yield _SequencePlan(rows, None, None, causal=num_rows > 1)
                continue
            keys = layout.runs[i] or slots[layout.starts[i] : layout.starts[i + 1]]
            mask = None
            if num_rows > 1 or layout.num_columns[i] > num_keys:
                mask = of_each[i].view(1, 1, num_rows, -1)
            yield _SequencePlan(rows, keys, mask, causal=False)

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
        if len(context) == 0 and num_rows == sequence.num_chain and not windowed:
            return _SequencePlan(rows, None, None, causal=num_rows > 1)
        own = self._batch.slots[rows]
        num_keys = len(context) + num_rows
        low = min(int(own.min()), int(context.min(initial=self._pool.num_slots)))
        high = max(int(own.max()), int(context.max(initial=0))) + 1
        keys: torch.Tensor | slice
        if high - low <= num_keys * self._max_span_ratio:
            keys = slice(low, high)
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
        return _SequencePlan(rows, keys, self._to_device(mask).to(self._dtype)[None, None], causal=False)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _attend(
    plan: _SequencePlan,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    softcap: float | None,
) -> torch.Tensor:
    """query [1, heads, R, key_dim], keys and values [1, kv_heads, num_keys, dim] -> [1, R, heads, value_dim]"""
    num_heads, num_rows = query.shape[1], query.shape[2]
    kv_heads = keys.shape[1]
    group = num_heads // kv_heads
    if softcap is not None:
        return _attend_capped(plan, query, keys, values, scaling, softcap)
    if group == 1 or plan.causal or num_rows > _MAX_PACKED_ROWS:
        return functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=plan.mask,
            is_causal=plan.causal,
            scale=scaling,
            enable_gqa=group > 1,
        ).transpose(1, 2)
    packed = query.reshape(1, kv_heads, group * num_rows, -1)
    attended = functional.scaled_dot_product_attention(
        packed, keys, values, attn_mask=plan.packed_mask(group), scale=scaling
    )
    return attended.view(1, num_heads, num_rows, -1).transpose(1, 2)


def _attend_capped(
    plan: _SequencePlan,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    softcap: float,
) -> torch.Tensor:
    """As `_attend`, written out: PyTorch's kernel has no cap. Softmax in float32, as transformers does."""
    num_heads, num_rows = query.shape[1], query.shape[2]
    kv_heads, num_keys = keys.shape[1], keys.shape[2]
    grouped = query.reshape(1, kv_heads, num_heads // kv_heads * num_rows, -1)
    scores = (grouped @ keys.transpose(2, 3)).view(1, num_heads, num_rows, num_keys) * scaling
    scores = torch.tanh(scores / softcap) * softcap
    if plan.mask is not None:
        scores = scores + plan.mask
    elif plan.causal:
        scores = scores.masked_fill(_above_diagonal(num_rows, scores.device), -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    attended = weights.view(1, kv_heads, -1, num_keys) @ values
    return attended.view(1, num_heads, num_rows, -1).transpose(1, 2)


def _above_diagonal(size: int, device: torch.device) -> torch.Tensor:
    """[size, size] bool: what a causal row does not see."""
    return torch.ones(size, size, dtype=torch.bool, device=device).triu(1)


def _run_of(slots: IntArray) -> slice | None:
    """The slice that equals the slots if they are one ascending run."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first != len(slots) - 1 or not (np.diff(slots) == 1).all():
        return None
    return slice(first, last + 1)
