"""From hidden states to logits, for the rows that are asked for and no others.

transformers computes the logits inside the causal model's forward, for rows that must be known beforehand and all at
once; here they are computed afterwards and in bounded chunks. What some families do behind their output embeddings is
therefore repeated here; `goose_ray.runner.support` checks at load that the result is the model's own.
"""

import torch
from transformers import PreTrainedModel

from goose_ray.errors import ModelLoadError

__all__ = ["LanguageModelHead"]


class LanguageModelHead:
    """Output embeddings, then the family's scaling and soft-capping of the logits."""

    vocab_size: int

    def __init__(self, model: PreTrainedModel) -> None:
        projection = model.get_output_embeddings()
        if projection is None:
            raise ModelLoadError(f"{type(model).__name__} has no output embeddings: it is not a causal language model")
        config = model.config.get_text_config()
        self._projection: torch.nn.Module = projection
        # Cohere multiplies, Granite divides; both are floats of the config.
        self._factor = float(getattr(config, "logit_scale", None) or 1.0)
        self._divisor = float(getattr(config, "logits_scaling", None) or 1.0)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.vocab_size = int(config.vocab_size)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> [n, vocab_size] float32"""
        logits: torch.Tensor = self._projection(hidden)
        if self._factor != 1.0:
            logits = logits * self._factor
        if self._divisor != 1.0:
            logits = logits / self._divisor
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits.float()
