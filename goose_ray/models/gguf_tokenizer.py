"""Rebuilds a Hugging Face tokenizer and chat template from the metadata of a GGUF file.

GGUF names the pre-tokenizer of a model (`tokenizer.ggml.pre`) without defining it, so only those defined here, checked
against the models' own tokenizers, can be rebuilt; guessing would quietly encode prompts wrongly.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from goose_ray.errors import ModelLoadError

__all__ = ["tokenizer_from_metadata"]

# GGUF token types: control tokens are special, user-defined ones are matched in text but not special.
_CONTROL, _USER_DEFINED = 3, 4


def _smollm() -> pre_tokenizers.PreTokenizer:
    # SmolLM's own definition: every digit stands alone, then GPT-2's byte-level split.
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )


_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"smollm": _smollm}


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer with its special tokens, context length and chat template.

    `metadata` maps GGUF keys to their values. Raises ModelLoadError for a tokenizer that is not defined here.
    """
    kind, pre = str(metadata.get("tokenizer.ggml.model")), str(metadata.get("tokenizer.ggml.pre"))
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise ModelLoadError(
            f"the GGUF file's tokenizer is {kind!r} with pre-tokenizer {pre!r}; only 'gpt2' with "
            f"{', '.join(map(repr, _PRE_TOKENIZERS))} can be rebuilt from GGUF. Use the model's safetensors release."
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    # No unknown token: bytes outside the vocabulary vanish, as with the model's own tokenizer.
    backend = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(token, special=type_ == _CONTROL, normalized=False)
            for token, type_ in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
            if type_ in (_CONTROL, _USER_DEFINED)
        ]
    )
    special = {
        name: tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        model_max_length=metadata["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **special,
    )
