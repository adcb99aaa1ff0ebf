"""Attention by torch's FlexAttention: one fused kernel over the KV pool as it lies, compiled by Triton on CUDA.

A *tile* is a few rows of one sequence, and the kernel's batch dimension: each tile has its own list of the pool's
blocks that hold a key for it, and reads no others. Within a block a mask decides slot by slot, from tables of bits:
who has the slot in its context, which rows are ancestors of which. No keys are gathered and no [rows, keys] mask is
made. Everything lies in memory that stays where it is, in one of a few shapes, so that a forward can be recorded.

On the CPU the same tables and masks go through an unfused reference, which is slow and there to be checked. Knows no
layer but by its number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from goose_ray.engine.step import StepBatch
from goose_ray.runner.attention import StaticStepAttention
from goose_ray.runner.flex_tables import BLOCK_SLOTS, FlexShape, FlexTables, shape_of
from goose_ray.runner.kv_pool import KVPool

__all__ = ["FlexBackend", "FlexKernel", "FlexStep", "fused", "reference"]

# The kernel wants its block of queries to be a multiple of its tile times the query heads of a key head.
_QUERY_BLOCK = 1024
# Shapes times kinds of layers that may be compiled before torch would fall back to the unfused reference.
_MAX_COMPILED = 128

FlexKernel = Callable[..., torch.Tensor]
_Mask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_Score = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class FlexBackend:
    """The StaticAttentionBackend of this module. Keeps the tables of every shape it has met.

    The kernel is by default the fused one on CUDA, the reference elsewhere.
    """

    def __init__(self, device: torch.device, *, kernel: FlexKernel | None = None) -> None:
        self._kernel = kernel or (fused() if device.type == "cuda" else reference)
        self._steps: dict[FlexShape, FlexStep] = {}

    def shape_of(self, batch: StepBatch) -> FlexShape:
        return shape_of(batch)

    def allocate(self, shape: FlexShape, pool: KVPool) -> "FlexStep":
        return FlexStep(shape, pool, self._kernel)

    def prepare(self, batch: StepBatch, pool: KVPool) -> StaticStepAttention:
        """The step before must be over: steps of one shape share their tables."""
        shape = shape_of(batch)
        if shape not in self._steps:
            self._steps[shape] = self.allocate(shape, pool)
        step = self._steps[shape]
        step.load(batch)
        return step


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """The block lists of the layers with one window, and the mask that goes with them."""

    # [num_tiles, 1, 1] and [num_tiles, 1, 1, num_blocks] int32, on the device
    counts: torch.Tensor
    blocks: torch.Tensor
    mask: BlockMask


class FlexStep:
    """The StaticStepAttention of this module. Rows beyond those of the batch write to the pool's scratch slot."""

    def __init__(self, shape: FlexShape, pool: KVPool, kernel: FlexKernel) -> None:
        self.shape = shape
        self._pool = pool
        self._kernel = kernel
        self._tables = FlexTables(shape, num_slots=pool.num_slots, scratch_slot=pool.scratch_slot)
        self._device = pool.keys[0].device
        self._on_device = {name: torch.from_numpy(table).to(self._device) for name, table in self._tables.all()}
        self._windows: dict[int | None, _Window] = {}
        self._caps: dict[float, _Score] = {}

    def load(self, batch: StepBatch) -> None:
        self._tables.fill(batch)
        for name, table in self._tables.all():
            self._on_device[name].copy_(torch.from_numpy(table))
        for size, window in self._windows.items():
            self._list_blocks(size, window)

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
        num_rows = query.shape[2]
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        slots = self._on_device["slots"][:num_rows]
        keys[:, slots] = key[0]
        values[:, slots] = value[0]
        if sliding_window not in self._windows:
            self._windows[sliding_window] = self._new_window(sliding_window)
        tiled = query[0][:, self._on_device["rows"]]
        tiled = tiled.view(len(tiled), self.shape.num_tiles, self.shape.tile_rows, -1).transpose(0, 1)
        attended = self._kernel(
            tiled.contiguous(),
            keys[None],
            values[None],
            score_mod=None if softcap is None else self._capped(softcap),
            block_mask=self._windows[sliding_window].mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        # [num_tiles, heads, tile_rows, dim] -> [num_tiles * tile_rows, heads, dim], of which each row has its place
        return attended.transpose(1, 2).flatten(0, 1)[self._on_device["places"][:num_rows]][None]

    def _new_window(self, size: int | None) -> _Window:
        num_tiles, num_blocks = self.shape.num_tiles, self._tables.num_blocks
        counts = torch.zeros(num_tiles, 1, 1, dtype=torch.int32, device=self._device)
        blocks = torch.zeros(num_tiles, 1, 1, num_blocks, dtype=torch.int32, device=self._device)
        mask = BlockMask.from_kv_blocks(
            counts,
            blocks,
            BLOCK_SIZE=(_QUERY_BLOCK, BLOCK_SLOTS),
            mask_mod=self._visible(size),
            seq_lengths=(self.shape.tile_rows, self._pool.keys[0].shape[1]),
            compute_q_blocks=False,
        )
        window = _Window(counts, blocks, mask)
        self._list_blocks(size, window)
        return window

    def _list_blocks(self, size: int | None, window: _Window) -> None:
        counts, blocks = self._tables.blocks(size)
        window.counts.copy_(torch.from_numpy(counts)[:, None, None])
        window.blocks.copy_(torch.from_numpy(blocks)[:, None, None])

    def _visible(self, size: int | None) -> _Mask:
        """Whether the row at a place sees a slot; see FlexTables for the tables."""
        slot_row, slot_position = self._on_device["slot_row"], self._on_device["slot_position"]
        owners, ancestors = self._on_device["owners"], self._on_device["ancestors"]
        sequence, position = self._on_device["sequence"], self._on_device["position"]
        first, count = self._on_device["first_row"], self._on_device["num_rows"]
        tile_rows = self.shape.tile_rows
        # A tensor, so that layers with and without a window are one kernel.
        reach = torch.tensor(2**30 if size is None else size, dtype=torch.int32, device=self._device)

        def visible(tile: torch.Tensor, head: torch.Tensor, row: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            place = tile * tile_rows + row
            local = slot_row[slot] - first[place]
            is_own = (slot_row[slot] >= 0) & (local >= 0) & (local < count[place])
            bit = torch.where(is_own, local, 0)
            of_tree = (ancestors[place, bit >> 5] >> (bit & 31)) & 1
            of_context = (owners[slot, sequence[place] >> 5] >> (sequence[place] & 31)) & 1
            near = slot_position[slot] > position[place] - reach
            return (torch.where(is_own, of_tree, of_context) == 1) & near

        return visible

    def _capped(self, cap: float) -> _Score:
        if cap not in self._caps:

            def capped(
                score: torch.Tensor, tile: torch.Tensor, head: torch.Tensor, row: torch.Tensor, slot: torch.Tensor
            ) -> torch.Tensor:
                return torch.tanh(score / cap) * cap

            self._caps[cap] = capped
        return self._caps[cap]


def fused() -> FlexKernel:
    """FlexAttention compiled, anew for every shape."""
    compiled: FlexKernel = torch.compile(flex_attention, dynamic=False)

    def kernel(*args: Any, **options: Any) -> torch.Tensor:
        with torch._dynamo.config.patch(recompile_limit=_MAX_COMPILED):
            return compiled(*args, **options)

    return kernel


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: _Score | None,
    block_mask: BlockMask,
    scale: float,
    enable_gqa: bool,
) -> torch.Tensor:
    """What the fused kernel computes, unfused: only keys of listed blocks that the mask lets through.

    Not torch's own unfused form, which spends a tenth of a second a call on one index at a time.
    """
    num_tiles, heads, tile_rows, _ = query.shape
    tile = torch.arange(num_tiles, device=query.device).view(-1, 1, 1, 1)
    row = torch.arange(tile_rows, device=query.device).view(1, 1, -1, 1)
    slot = torch.arange(key.shape[2], device=query.device)
    listed = block_mask.to_dense().bool().repeat_interleave(block_mask.BLOCK_SIZE[1], -1)[..., : len(slot)]
    seen = block_mask.mask_mod(tile, tile, row, slot) & listed
    group = heads // key.shape[1] if enable_gqa else 1
    scores = query @ key.repeat_interleave(group, 1).transpose(2, 3) * scale
    if score_mod is not None:
        scores = score_mod(scores, tile, tile, row, slot)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1, dtype=torch.float32)
    # A padded row may see nothing.
    return weights.nan_to_num().to(value.dtype) @ value.repeat_interleave(group, 1)
