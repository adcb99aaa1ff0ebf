"""Where ranks have their model from: in parts, or whole."""

from typing import Protocol

import torch
from transformers import PreTrainedModel

__all__ = ["ModelParts", "ModelSource"]


class ModelParts(Protocol):
    """A model without values, of which each rank reads its part."""

    # on the meta device
    model: PreTrainedModel

    def fill(self, divided: PreTrainedModel, *, rank: int, num_ranks: int) -> None:
        """Gives values to parameters and buffers of `model`, now with memory for the rank's part, output embeddings
        excepted. Raises ModelLoadError.
        """
        ...

    def head_rows(self, first: int, stop: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight [stop - first, hidden_size] and bias [stop - first] of those outputs' embeddings."""
        ...


class ModelSource(Protocol):
    """Can be sent to the ranks' processes, and is asked there."""

    def parts(self) -> ModelParts | None:
        """None if the model can only be had whole. Raises ModelLoadError if there is none."""
        ...

    def whole(self) -> PreTrainedModel:
        """On the CPU. Raises ModelLoadError."""
        ...
