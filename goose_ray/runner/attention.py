"""The door between an unmodified transformers model and our attention.

The model calls `tree_attention` in every layer, because its config names `ATTENTION_NAME`; the step's
`StepAttention` reaches it as the extra keyword argument `goose_step` of the model call. How a step attends (which
kernel, which masks) is the backend's business.
"""

from collections.abc import Hashable
from typing import Any, Protocol, TypeVar, cast

import torch
from transformers import AttentionInterface

from goose_ray.engine.step import StepBatch
from goose_ray.errors import ModelLoadError
from goose_ray.runner.kv_pool import KVPool

__all__ = [
    "ATTENTION_NAME",
    "AttentionBackend",
    "ShapeT",
    "StaticAttentionBackend",
    "StaticShape",
    "StaticStepAttention",
    "StepAttention",
    "register_tree_attention",
    "tree_attention",
]

ATTENTION_NAME = "goose_tree"

# Arguments of transformers' attention calls that change nothing here: there is no cache and no dropout, positions are
# already in queries and keys, and what is visible is decided by the tree.
_NEUTRAL_ARGUMENTS = frozenset(
    {
        "cache",
        "cache_position",
        "dropout",
        "is_causal",
        "layer_idx",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


class StepAttention(Protocol):
    """One step's attention, prepared once and used by every layer."""

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
        """Stores the T rows' keys and values in the pool and attends.

        query [1, heads, T, key_dim], key [1, kv_heads, T, key_dim], value [1, kv_heads, T, value_dim] ->
        [1, T, heads, value_dim]. A row at position p sees its sequence's context, its ancestors and itself, of those
        the ones at positions above p - sliding_window. With a softcap c a scaled score s becomes c * tanh(s / c).
        """
        ...


class AttentionBackend(Protocol):
    """Turns a step's arrays into what its kernel needs."""

    def prepare(self, batch: StepBatch, pool: KVPool) -> StepAttention: ...


class StaticStepAttention(StepAttention, Protocol):
    """Attention whose arrays stay where they are from step to step, so that a recorded forward may read them."""

    def load(self, batch: StepBatch) -> None:
        """Takes the next step, which must fit. Rows beyond the batch's write to the pool's scratch slot alone."""
        ...


class StaticShape(Hashable, Protocol):
    """What a forward is compiled and recorded for."""

    @property
    def num_rows(self) -> int: ...


ShapeT = TypeVar("ShapeT", bound=StaticShape)


class StaticAttentionBackend(AttentionBackend, Protocol[ShapeT]):
    """A backend whose steps can be recorded."""

    def shape_of(self, batch: StepBatch) -> ShapeT:
        """The smallest of its few shapes that holds the batch."""
        ...

    def allocate(self, shape: ShapeT, pool: KVPool) -> StaticStepAttention: ...


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    goose_step: StepAttention | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function in the sense of transformers' AttentionInterface.

    Raises ModelLoadError if the layer asks for something that is not computed here (sinks, a position bias ...).
    """
    for name, argument in extra.items():
        if name not in _NEUTRAL_ARGUMENTS and argument is not None:
            raise ModelLoadError(f"{type(module).__name__} needs attention with {name!r}, which is not supported")
    if attention_mask is not None:
        raise ModelLoadError(f"{type(module).__name__} builds an attention mask of its own, which is not supported")
    if goose_step is None:
        raise ModelLoadError(f"{type(module).__name__} does not pass keyword arguments on to its attention function")
    output = goose_step.attend(
        cast(int, module.layer_idx),
        query,
        key,
        value,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        softcap=softcap,
    )
    # Some models take a view of it.
    return output.contiguous(), None


def register_tree_attention() -> None:
    """Makes `ATTENTION_NAME` known to transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, tree_attention)
