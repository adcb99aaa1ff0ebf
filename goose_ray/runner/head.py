"""From hidden states to logits, for the rows that are asked for and no others.

transformers computes the logits inside the causal model's forward, for rows that must be known beforehand and all at
once; here they are computed afterwards and in bounded chunks, by a tensor-parallel rank for its share of the
vocabulary. What some families do behind their output embeddings is therefore repeated here;
`goose_ray.runner.support` checks at load that the result is the model's own.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from goose_ray.errors import ModelLoadError
from goose_ray.runner.linear import linear_of, packed

__all__ = ["LanguageModelHead"]


class LanguageModelHead:
    """Output embeddings, then the family's scaling and soft-capping of the logits.

    With `rank` of `num_ranks` it holds that share of the vocabulary, from `first_token` on; all but the last ones are
    `width` tokens wide.
    """

    vocab_size: int
    first_token: int
    width: int

    def __init__(self, model: PreTrainedModel, *, rank: int = 0, num_ranks: int = 1) -> None:
        projection = model.get_output_embeddings()
        if projection is None:
            raise ModelLoadError(f"{type(model).__name__} has no output embeddings: it is not a causal language model")
        config = model.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.width = -(-self.vocab_size // num_ranks)
        self.first_token = rank * self.width
        self._projection: nn.Module = projection
        if num_ranks > 1:
            if self.first_token >= self.vocab_size:
                raise ModelLoadError(f"a vocabulary of {self.vocab_size} tokens is too small for {num_ranks} ranks")
            shared = projection.weight is model.get_input_embeddings().weight
            self._projection = _rows_of(projection, self.first_token, self.first_token + self.width, copied=not shared)
        # Cohere multiplies, Granite divides; both are floats of the config.
        self._factor = float(getattr(config, "logit_scale", None) or 1.0)
        self._divisor = float(getattr(config, "logits_scaling", None) or 1.0)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> [n, vocab_size, or this share of it] float32"""
        logits: torch.Tensor = self._projection(hidden)
        if self._factor != 1.0:
            logits = logits * self._factor
        if self._divisor != 1.0:
            logits = logits / self._divisor
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits.float()

    def fill(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Gives values to a share that had none: [width, or fewer on the last rank, hidden_size]."""
        self._projection = packed(linear_of(weight, bias))

    def to(self, device: torch.device) -> "LanguageModelHead":
        """Itself, moved."""
        self._projection = self._projection.to(device)
        return self


def _rows_of(projection: nn.Module, first: int, last: int, *, copied: bool) -> nn.Module:
    """A linear layer of some of the outputs. A copy where the whole layer is to be freed."""
    if not isinstance(projection, nn.Linear):
        raise ModelLoadError(f"output embeddings of type {type(projection).__name__} cannot be divided among ranks")
    weight = projection.weight.detach()[first:last]
    bias = None if projection.bias is None else projection.bias.detach()[first:last].clone()
    return packed(linear_of(weight.clone() if copied else weight, bias))
