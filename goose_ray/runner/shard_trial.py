"""What a divided model makes of the trial's paths with its own attention.

There is no undivided model to compare with where each rank has read its part alone. That the parts are the right ones
follows from their names and shapes; that tree attention computes what the model's own does is tried, as always.
"""

from types import SimpleNamespace
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from goose_ray.runner.head import LanguageModelHead
from goose_ray.runner.sharded_scoring import RankGroup, whole_rows
from goose_ray.runner.support import Trial

__all__ = ["trial_of_ranks"]


class _Together:
    """The model that the ranks are together, on rank 0; on others its logits mean nothing."""

    def __init__(self, model: PreTrainedModel, head: LanguageModelHead, ranks: RankGroup) -> None:
        self._model, self._head, self._ranks = model, head, ranks
        self.device = model.device

    def __call__(self, **inputs: Any) -> SimpleNamespace:
        hidden = self._model.base_model(**inputs).last_hidden_state[0]
        logits = self._head(hidden)
        together = whole_rows(logits, self._head, self._ranks)
        return SimpleNamespace(logits=(logits if together is None else together)[None])


def trial_of_ranks(model: PreTrainedModel, head: LanguageModelHead, ranks: RankGroup) -> Trial:
    """To be called on all ranks, before `adopt_attention`."""
    with torch.inference_mode():
        return Trial.with_own_attention(cast(PreTrainedModel, _Together(model, head, ranks)))
