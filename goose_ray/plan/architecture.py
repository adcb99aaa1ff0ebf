"""The numbers of a model's config that memory and time follow from, and what each rank holds of it.

Knows layers of the Llama lineage with dense MLPs; refuses others. Of some models the numbers come along, so that a plan
needs nothing of the hub.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from goose_ray.errors import ConfigError
from goose_ray.models.loader import find
from goose_ray.models.shard_division import even_sizes, head_sizes

__all__ = ["Architecture", "RankShare", "known_models", "read_config"]

# Per layer: biases of q, k and v; norms of a head's queries and keys.
_WITH_BIAS = ("qwen2",)
_WITH_HEAD_NORMS = ("qwen3",)
_KNOWN = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """What one rank holds, in parameters; the input embeddings and norms are on every rank."""

    query_heads: int
    kv_heads: int
    layers: int
    head: int
    embeddings: int

    @property
    def parameters(self) -> int:
        return self.layers + self.head + self.embeddings

    @property
    def multiplied(self) -> int:
        """Parameters that every step reads and every row is multiplied with: of the embeddings it reads a row."""
        return self.layers + self.head


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Names are those of transformers' configs."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Raises ConfigError for a model whose layers are not known, or whose config lacks a number."""
        kind = config.get("model_type")
        if kind not in _KNOWN:
            raise ConfigError(f"goose plan knows models of the types {', '.join(_KNOWN)}, not {kind!r}")
        try:
            heads = int(config["num_attention_heads"])
            return cls(
                model_type=kind,
                num_attention_heads=heads,
                num_key_value_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
                **{name: int(config[name]) for name in _PLAIN},
            )
        except KeyError as error:
            raise ConfigError(f"the model's config lacks {error}") from error

    def share(self, rank: int, num_ranks: int) -> RankShare:
        """As `goose_ray.models.shard_division` has it. Rank 0 holds most heads: what is over goes to the first ranks.

        Raises ConfigError if there are more ranks than key-value heads.
        """
        if num_ranks > self.num_key_value_heads:
            raise ConfigError(
                f"tensor_parallel_size must be at most {self.num_key_value_heads}, the model's number of key-value "
                f"heads, not {num_ranks}"
            )
        kv_heads = head_sizes(self.num_key_value_heads, self.num_key_value_heads, num_ranks)[rank]
        query_heads = head_sizes(self.num_attention_heads, self.num_key_value_heads, num_ranks)[rank]
        inner = even_sizes(self.intermediate_size, num_ranks)[rank]
        hidden, width = self.hidden_size, -(-self.vocab_size // num_ranks)
        heads = query_heads + 2 * kv_heads
        layer = hidden * self.head_dim * (heads + query_heads) + 3 * hidden * inner + 2 * hidden
        if self.model_type in _WITH_BIAS:
            layer += heads * self.head_dim
        if self.model_type in _WITH_HEAD_NORMS:
            layer += 2 * self.head_dim
        return RankShare(
            query_heads=query_heads,
            kv_heads=kv_heads,
            layers=self.num_hidden_layers * layer + hidden,
            head=hidden * max(0, min(width, self.vocab_size - rank * width)),
            embeddings=hidden * self.vocab_size,
        )


_PLAIN = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")


def known_models() -> dict[str, dict[str, Any]]:
    """Configs by hub id; `source` says where the numbers are from."""
    text = (files("goose_ray.plan") / "data" / "models.json").read_text(encoding="utf-8")
    known: dict[str, dict[str, Any]] = json.loads(text)
    return known


def read_config(model: str) -> dict[str, Any]:
    """The config of a model that comes along, or that lies on this machine. Raises ConfigError if neither is so."""
    known = known_models()
    if model in known:
        return {name: value for name, value in known[model].items() if name != "source"}
    directory = None if Path(model).is_file() else find(model)
    if directory is None or not (directory / "config.json").is_file():
        raise ConfigError(
            f"the config of {model!r} is not here: fetch the model first (`hf download`), or plan one of "
            f"{', '.join(known)}"
        )
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return config
