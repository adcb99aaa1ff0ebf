"""Which part of every parameter a tensor-parallel rank holds: DeepSpeed's automatic division, worked out from names.

Linear layers of the attention are divided by whole key-value heads, those of the MLP as evenly as can be; all else is
held by every rank, the output embeddings excepted, which `goose_ray.runner.head` divides by tokens. Knows the layers of
the Llama lineage (Llama, Mistral, Qwen 2 and 3, Gemma, ...) and says of any other that it does not; whoever loads
compares each shape with DeepSpeed's.
"""

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

__all__ = ["Division", "IndivisibleError", "TensorSlice", "even_sizes", "head_sizes"]

# By the last part of the name: outputs are divided, or inputs, whose products are then summed over the ranks.
_OUTPUTS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
_INPUTS = frozenset({"o_proj", "down_proj"})
_MLP = frozenset({"gate_proj", "up_proj", "down_proj"})
# `tp_grain_size` of DeepSpeed's inference configuration
_GRAIN = 64


class IndivisibleError(Exception):
    """The model has layers that are not known here; the message names one. It may be loaded whole and divided then."""


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Entries `start` to `stop` along `dim` of a tensor of `whole`; all of it where `dim` is None."""

    whole: tuple[int, ...]
    dim: int | None = None
    start: int = 0
    stop: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        if self.dim is None:
            return self.whole
        return (*self.whole[: self.dim], self.stop - self.start, *self.whole[self.dim + 1 :])


def head_sizes(total: int, heads: int, num_ranks: int) -> list[int]:
    """`total` entries of so many heads, whole heads to each rank: the first ranks get those that are over."""
    least, over = divmod(heads, num_ranks)
    return [(least + (rank < over)) * (total // heads) for rank in range(num_ranks)]


def even_sizes(total: int, num_ranks: int) -> list[int]:
    """In grains of 64 entries, which tensor cores like: the first ranks get those that are over, the last one what is
    no whole grain. Fewer entries than a grain are divided one by one.
    """
    grain = _GRAIN if total >= _GRAIN else 1
    grains, rest = divmod(total, grain)
    least, over = divmod(grains, num_ranks)
    sizes = [(least + (rank < over)) * grain for rank in range(num_ranks)]
    sizes[-1] += rest
    return sizes


class Division:
    """Of a model's parameters, its output embeddings excepted. Needs no values: the meta device will do.

    Raises IndivisibleError naming a layer that is not known.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        head = model.get_output_embeddings()
        # name: shape, the dimension that is divided, and into how many heads if into heads
        self._tensors: dict[str, tuple[tuple[int, ...], int | None, int]] = {}
        for path, module in model.named_modules():
            if module is head:
                continue
            name = path.rpartition(".")[2]
            for kind, parameter in module.named_parameters(recurse=False):
                whole = tuple(parameter.shape)
                dim, of_heads = None, 0
                if isinstance(module, nn.Linear):
                    dim = _divided_dim(path, name, kind)
                else:
                    _check_whole(path, module, whole, head_dim)
                if dim is not None:
                    of_heads = heads if name not in _MLP and whole[dim] % heads == 0 else 0
                self._tensors[f"{path}.{kind}"] = (whole, dim, of_heads)

    @property
    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def slices(self, *, rank: int, num_ranks: int) -> dict[str, TensorSlice]:
        """What the rank holds of each parameter, by name."""
        found = {}
        for name, (whole, dim, heads) in self._tensors.items():
            if dim is None:
                found[name] = TensorSlice(whole)
                continue
            sizes = head_sizes(whole[dim], heads, num_ranks) if heads else even_sizes(whole[dim], num_ranks)
            start = sum(sizes[:rank])
            found[name] = TensorSlice(whole, dim, start, start + sizes[rank])
        return found


def _divided_dim(path: str, name: str, kind: str) -> int | None:
    """None for the bias of a layer whose inputs are divided: it is added after the sum."""
    if ".layers." in f".{path}":
        if name in _OUTPUTS:
            return 0
        if name in _INPUTS:
            return 1 if kind == "weight" else None
    raise IndivisibleError(f"the linear layer {path}")


def _check_whole(path: str, module: nn.Module, whole: tuple[int, ...], head_dim: int) -> None:
    if isinstance(module, nn.Embedding):
        return
    if len(whole) != 1:
        raise IndivisibleError(f"the tensor of {path}")
    # A norm inside the attention sees a rank's own heads: it must be one of a single head.
    if ".self_attn." in path and whole != (head_dim,):
        raise IndivisibleError(f"{path}, which norms all heads at once")
