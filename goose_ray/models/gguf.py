"""Converts a GGUF file of a Llama-shaped model into a Hugging Face directory: fp32 safetensors, config, tokenizer.

Reads the file's own metadata and nothing else. Knows nothing about where the file came from or where the directory
will live.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig

from goose_ray.errors import ModelLoadError
from goose_ray.models.gguf_tokenizer import tokenizer_from_metadata

__all__ = ["RECIPE", "convert"]

# Raise it whenever the converted directory would come out different: caches of other recipes are then not used.
RECIPE = 1

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, into: Path, *, progress: bool) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files into `into`.

    Raises ModelLoadError if the file is no GGUF, or holds an architecture or a tokenizer that cannot be converted
    faithfully.
    """
    try:
        reader = GGUFReader(source)
    except ValueError as error:
        raise ModelLoadError(f"{source} is not a readable GGUF file: {error}") from error
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelLoadError(
            f"{source.name} holds the architecture {architecture!r}; only 'llama' is converted from GGUF. "
            "Use the model's safetensors release."
        )
    tokenizer = tokenizer_from_metadata(metadata)
    weights = {
        name: array
        for tensor in tqdm(reader.tensors, desc="converting", unit="tensor", disable=not progress)
        for name, array in [_converted(tensor.name, dequantize(tensor.data, tensor.tensor_type), metadata)]
    }
    config = _config(metadata, tied="lm_head.weight" not in weights)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(into)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(into)
    tokenizer.save_pretrained(into)


def _config(metadata: Mapping[str, Any], *, tied: bool) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        max_position_embeddings=metadata["llama.context_length"],
        # GGUF keeps fp32: the shortest decimal that rounds to it is the number the model was published with.
        rms_norm_eps=float(str(np.float32(metadata["llama.attention.layer_norm_rms_epsilon"]))),
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=tied,
        dtype="float32",
    )


def _converted(name: str, array: NDArray[np.float32], metadata: Mapping[str, Any]) -> tuple[str, NDArray[np.float32]]:
    """The tensor under its Hugging Face name, rows in Hugging Face order. Raises ModelLoadError if it has none."""
    stem, _, suffix = name.rpartition(".")
    if stem in _GLOBAL_NAMES and suffix == "weight":
        return f"{_GLOBAL_NAMES[stem]}.weight", np.ascontiguousarray(array)
    prefix, layer, part = [*stem.split(".", 2), "", ""][:3]
    if prefix != "blk" or part not in _LAYER_NAMES or suffix != "weight":
        raise ModelLoadError(f"the GGUF tensor {name!r} has no place in a Llama model that this version converts")
    if part in ("attn_q", "attn_k"):
        heads = metadata["llama.attention.head_count" if part == "attn_q" else "llama.attention.head_count_kv"]
        array = _halves_apart(array, heads)
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight", np.ascontiguousarray(array)


def _halves_apart(array: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undoes GGUF's row order of query and key projections.

    GGUF interleaves the two halves that rotary embedding turns together (rows 0, 1 of a head are one pair); Hugging
    Face keeps them apart (rows 0 and head_dim / 2 are). `array` is [num_heads * head_dim, hidden].
    """
    rows, hidden = array.shape
    pairs = array.reshape(num_heads, rows // num_heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)
