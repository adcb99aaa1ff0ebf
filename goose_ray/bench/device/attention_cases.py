"""Whether an attention backend computes what SDPA does: random keys, trees and chunks, without a model.

Every case holds what a step may hold: a first and a further chunk, trees of several shapes, sequences with a beginning
in common, slots anywhere in the pool, two layers of different windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from goose.tree import IntArray, TokenTree
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.attention import AttentionBackend
from goose_ray.runner.kv_pool import KVPool, LayerShape
from goose_ray.runner.sdpa import SdpaBackend

__all__ = ["CASES", "AttentionCase", "largest_error", "mixed_step"]

_NUM_SLOTS = 500
_SAMPLING = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    name: str
    heads: int = 4
    kv_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    # of the second layer; the first sees everything
    window: int | None = None
    softcap: float | None = None


CASES = (
    AttentionCase(name="plain"),
    AttentionCase(name="grouped", heads=8, kv_heads=2),
    AttentionCase(name="grouped by three", heads=6, kv_heads=2),
    AttentionCase(name="window", heads=8, kv_heads=2, window=9),
    AttentionCase(name="softcap", window=9, softcap=3.0),
    AttentionCase(name="all at once", heads=8, kv_heads=2, key_dim=64, value_dim=32, window=9, softcap=3.0),
)


def largest_error(
    case: AttentionCase, backend: AttentionBackend, *, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> float:
    """The largest difference from SDPA in float32 on the CPU, as a part of the largest output."""
    expected = _outputs(case, SdpaBackend(), torch.float32, torch.device("cpu"), seed)
    found = _outputs(case, backend, dtype, device, seed)
    return float((found - expected).abs().max() / expected.abs().max())


def mixed_step(draw: np.random.Generator, *, num_slots: int) -> StepBatch:
    """The step that all cases share, for a pool of at least 500 slots."""
    order = draw.permutation(num_slots)
    common, first, second, third = np.split(order[:150], [64, 90, 120])
    fan = [0, 0, 1, 1, 3, 0, 6, 7, 8]
    # context, tokens of the chain, parents of the drafts; None: a chunk that stops short of the anchor
    parts: list[tuple[IntArray, int, list[int] | None]] = [
        (order[:0], 40, None),
        (first, 17, None),
        (np.concatenate((common, second)), 1, fan),
        (np.concatenate((common, third)), 3, list(range(20))),
        (common, 1, []),
        (order[:0], 2, [0, 0]),
    ]
    return _batch(parts, order[150:], draw)


def _batch(
    parts: Sequence[tuple[IntArray, int, list[int] | None]], free: IntArray, draw: np.random.Generator
) -> StepBatch:
    steps, positions, parents, tokens, row = [], [], [], [], 0
    for number, (context, num_chain, drafts) in enumerate(parts):
        chain = np.arange(num_chain)
        anchor = row + num_chain - 1
        positions.append(len(context) + chain)
        parents.append(np.where(chain == 0, -1, row + chain - 1))
        ids = draw.integers(0, 100, num_chain + len(drafts or ()))
        tree = None
        if drafts is not None:
            tree = TokenTree.from_parents(ids[num_chain - 1 :].tolist(), [-1, *drafts])
            positions.append(len(context) + num_chain - 1 + tree.depths[1:])
            parents.append(anchor + tree.parents[1:])
        tokens.append(ids)
        steps.append(
            SequenceStep(
                request_id=f"case-{number}",
                row_start=row,
                row_end=row + len(ids),
                num_chain=num_chain,
                context_slots=context,
                tree=tree,
                sampling=_SAMPLING,
                output_position=0,
                harvest_chain=False,
            )
        )
        row += len(ids)
    return StepBatch(
        step_id=0,
        token_ids=np.concatenate(tokens),
        positions=np.concatenate(positions),
        slots=free[:row],
        parents=np.concatenate(parents),
        sequences=tuple(steps),
        harvest_k=0,
    )


def _outputs(
    case: AttentionCase, backend: AttentionBackend, dtype: torch.dtype, device: torch.device, seed: int
) -> torch.Tensor:
    """[layers, T, heads, value_dim] float32 on the CPU"""
    batch = mixed_step(np.random.default_rng(seed), num_slots=_NUM_SLOTS)
    draw = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=draw).to(device, dtype)

    layer = LayerShape(kv_heads=case.kv_heads, key_dim=case.key_dim, value_dim=case.value_dim)
    pool = KVPool([layer, layer], num_slots=_NUM_SLOTS, dtype=dtype, device=device)
    step = backend.prepare(batch, pool)
    outputs = []
    for number, window in enumerate((None, case.window)):
        # What other sequences left in the pool.
        pool.keys[number].copy_(random(*pool.keys[number].shape))
        pool.values[number].copy_(random(*pool.values[number].shape))
        attended = step.attend(
            number,
            random(1, case.heads, batch.num_rows, case.key_dim),
            random(1, case.kv_heads, batch.num_rows, case.key_dim),
            random(1, case.kv_heads, batch.num_rows, case.value_dim),
            scaling=case.key_dim**-0.5,
            sliding_window=window,
            softcap=case.softcap,
        )
        outputs.append(attended[0].float().cpu())
    return torch.stack(outputs)
