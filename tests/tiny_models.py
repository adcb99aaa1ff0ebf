"""Tiny random models of the supported families, made on the spot: seeded, fp32, with greedy output that varies."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from goose_ray.config import EMBEDDED_MODEL
from goose_ray.models.loader import resolve

__all__ = ["FAMILIES", "VOCAB_SIZE", "WINDOW", "save_with_embedded_tokenizer", "tiny_model"]

VOCAB_SIZE = 128
# Of the families that have one: shorter than the sequences of the tests.
WINDOW = 7

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
    # The default of 0.02 leaves a random model near-uniform: greedy output would be one token over and over.
    "initializer_range": 0.3,
}
_GQA: dict[str, Any] = {**_SHAPE, "num_key_value_heads": 2}

_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_GQA),
    "qwen2": lambda: Qwen2Config(**_GQA),
    "qwen3": lambda: Qwen3Config(**_GQA, head_dim=16),
    "mistral": lambda: MistralConfig(**_GQA, sliding_window=WINDOW, head_dim=8),
    "gemma2": lambda: Gemma2Config(
        **_GQA,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=24,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=20.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **_GQA,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=24,
        final_logit_softcapping=20.0,
    ),
    "phi3": lambda: Phi3Config(**_GQA),
    "gpt_neox": lambda: GPTNeoXConfig(**_SHAPE),
    "mixtral": lambda: MixtralConfig(**_GQA, num_local_experts=4, num_experts_per_tok=2, head_dim=8),
    "olmo2": lambda: Olmo2Config(**_GQA),
}

FAMILIES = tuple(_CONFIGS)


def tiny_model(family: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A model of its own each time: a runner takes over the one it is given. `overrides` are set on its config."""
    config = _CONFIGS[family]()
    for name, value in overrides.items():
        setattr(config, name, value)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval()
    return model


def save_with_embedded_tokenizer(folder: Path, **overrides: Any) -> None:
    """A tiny model that can be served, with the embedded model's tokenizer and chat template. `overrides` are set on
    its config.
    """
    embedded = resolve(EMBEDDED_MODEL)
    vocab_size = AutoConfig.from_pretrained(embedded).vocab_size
    model = tiny_model("llama", vocab_size=vocab_size, **overrides)
    model.save_pretrained(folder)
    for file in (*embedded.glob("*token*"), *embedded.glob("*.jinja")):
        shutil.copy(file, folder)
