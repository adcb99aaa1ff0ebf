"""Refusing, at load, models that this runner would run wrongly: by what their config names, and by trying.

The trial runs a small tree through our attention, KV pool and head, and the same root-to-leaf paths through the
model's own forward. Whatever no list foresaw (state outside attention, keys shared between layers, logits computed
otherwise) shows there.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from goose.tree import TokenTree
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.errors import ConfigError, ModelLoadError
from goose_ray.runner.attention import ATTENTION_NAME, register_tree_attention
from goose_ray.runner.kv_pool import LayerShape

__all__ = ["Trial", "adopt_attention", "check_config", "longest_sequence", "observe_layers"]

_LAYER_TYPES = ("full_attention", "sliding_attention")
# Their frequencies follow the longest sequence of the forward, which here holds several sequences.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check_config(model: PreTrainedModel) -> None:
    """Raises ModelLoadError naming the feature if the config asks for one that is not computed here."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ModelLoadError(f"{name} is an encoder-decoder, which is not supported")
    config = model.config.get_text_config()
    for layer_type in getattr(config, "layer_types", None) or ():
        if layer_type not in _LAYER_TYPES:
            raise ModelLoadError(f"{name} has layers of type {layer_type!r}, which is not supported")


def longest_sequence(of_model: PretrainedConfig, wanted: int | None) -> int:
    """`wanted`, or the model's own limit; raises ConfigError if the model cannot serve `wanted` tokens exactly."""
    config = of_model.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None:
        raise ModelLoadError(f"{type(of_model).__name__} states no max_position_embeddings, so its limit is unknown")
    reason = "the model's max_position_embeddings"
    for parameters in _rope_parameters(config):
        if parameters.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            original = parameters.get("original_max_position_embeddings") or limit
            if original < limit:
                limit = original
                reason = f"where its {parameters['rope_type']!r} rotary embedding starts to depend on the batch"
    if wanted is not None and wanted > limit:
        raise ConfigError(f"engine.max_model_len must be at most {limit} ({reason}), not {wanted}")
    return int(limit) if wanted is None else wanted


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    # One set, or one per layer type.
    return [parameters, *(entry for entry in parameters.values() if isinstance(entry, dict))]


def adopt_attention(model: PreTrainedModel) -> None:
    """Makes the model call `tree_attention`; raises ModelLoadError if its code does not allow it."""
    register_tree_attention()
    model.set_attn_implementation(ATTENTION_NAME)
    if model.base_model.config.get_text_config()._attn_implementation != ATTENTION_NAME:
        raise ModelLoadError(
            f"{type(model).__name__} does not call attention through transformers' AttentionInterface, "
            "which is needed for tree attention"
        )


class _LayerObserver:
    """A StepAttention that stores nothing and notes what each layer would store."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: dict[int, int | None] = {}

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
        if layer in self.shapes:
            raise ModelLoadError(f"attention layer {layer} runs twice in a forward, which is not supported")
        self.shapes[layer] = LayerShape(kv_heads=key.shape[1], key_dim=key.shape[3], value_dim=value.shape[3])
        self.windows[layer] = sliding_window
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def observe_layers(model: PreTrainedModel) -> tuple[LayerShape, ...]:
    """What the pool must hold, read off one forward of one token: right for any family, and for a sharded model."""
    observer = _LayerObserver()
    device = model.device
    name = type(model).__name__
    try:
        with torch.inference_mode():
            model.base_model(
                input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device),
                position_ids=torch.zeros(1, 1, dtype=torch.int64, device=device),
                use_cache=False,
                goose_step=observer,
            )
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{name} cannot be run the way this engine runs models: {error}") from error
    config = model.config.get_text_config()
    if sorted(observer.shapes) != list(range(config.num_hidden_layers)):
        raise ModelLoadError(
            f"{name} has {config.num_hidden_layers} layers, of which {len(observer.shapes)} call attention; "
            "models with other kinds of layers are not supported"
        )
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    for layer, layer_type in enumerate(types):
        if window and layer_type == "sliding_attention" and observer.windows[layer] is None:
            raise ModelLoadError(f"{name} does not tell its attention function the sliding window of {window}")
    return tuple(observer.shapes[layer] for layer in range(config.num_hidden_layers))


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A chunk of one token, then a chain of one with a tree of three drafts, and what the model itself makes of it."""

    # [2, 4, vocab] float32: the model's own logits along both root-to-leaf paths
    reference: torch.Tensor

    @classmethod
    def with_own_attention(cls, model: PreTrainedModel) -> "Trial":
        """Runs the model as it is; to be called before `adopt_attention`."""
        paths = torch.tensor([[0, 1, 2, 3], [0, 1, 4, 5]], device=model.device)
        with torch.inference_mode():
            # One path a forward: a batch of them would be a different computation for experts.
            logits = [
                model(input_ids=path[None], attention_mask=torch.ones_like(path)[None], use_cache=False).logits[0]
                for path in paths
            ]
        return cls(torch.stack(logits).float())

    def steps(self) -> tuple[StepBatch, StepBatch]:
        tree = TokenTree.from_parents([1, 2, 3, 4, 5], [-1, 0, 1, 0, 3])
        return (
            _trial_step(0, slots=[3], positions=[0], parents=[-1], context=[], tokens=[0], tree=None),
            _trial_step(
                1,
                slots=[5, 2, 0, 4, 1],
                positions=[1, 2, 3, 2, 3],
                parents=[-1, 0, 1, 0, 3],
                context=[3],
                tokens=tree.token_ids.tolist(),
                tree=tree,
            ),
        )

    def check(self, name: str, logits: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype) -> None:
        """`logits` of both steps' rows; raises ModelLoadError unless they are the reference up to rounding."""
        ours = torch.cat(logits)
        expected = torch.cat((self.reference[0], self.reference[1, 2:]))
        scale = float(expected.abs().max())
        error = float((ours - expected).abs().max())
        # Far above what rounding makes of a deep model, far below what a missing feature does.
        if not error <= 2 * math.sqrt(torch.finfo(dtype).eps) * max(scale, 1.0):
            raise ModelLoadError(
                f"{name} gives other logits under tree attention than by itself (off by {error:.3g} of {scale:.3g}): "
                "its architecture keeps state or scales logits in a way that is not supported"
            )


def _trial_step(
    step_id: int,
    *,
    slots: list[int],
    positions: list[int],
    parents: list[int],
    context: list[int],
    tokens: list[int],
    tree: TokenTree | None,
) -> StepBatch:
    return StepBatch(
        step_id=step_id,
        token_ids=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        slots=np.array(slots, dtype=np.int64),
        parents=np.array(parents, dtype=np.int64),
        sequences=(
            SequenceStep(
                request_id="trial",
                row_start=0,
                row_end=len(tokens),
                num_chain=1,
                context_slots=np.array(context, dtype=np.int64),
                tree=tree,
                sampling=SamplingParams(temperature=0.0),
                output_position=0,
                harvest_chain=False,
            ),
        ),
        harvest_k=0,
    )
