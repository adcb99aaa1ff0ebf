"""transformers' own ways to decode greedily: `generate` one at a time, padded batches, and its continuous batching."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from goose_ray.bench.engine.references import TokenIds
from goose_ray.errors import GooseRayError

__all__ = ["ContinuousBatching", "OneAtATime", "Opponent", "PaddedBatches"]


class Opponent(Protocol):
    @property
    def name(self) -> str: ...

    def answers(self, prompts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
        """The greedy reply to each prompt, up to its end-of-sequence token."""
        ...

    def close(self) -> None:
        """Frees what is kept from call to call."""
        ...


class OneAtATime:
    """`generate` of one prompt after the other."""

    name = "generate"

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def answers(self, prompts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
        return [_generated(self._model, [prompt], max_tokens)[0] for prompt in prompts]

    def close(self) -> None: ...


class PaddedBatches:
    """`generate` of up to `size` prompts together, padded on the left: all wait for the longest reply."""

    name = "generate, padded"

    def __init__(self, model: PreTrainedModel, size: int) -> None:
        self._model, self._size = model, size

    def answers(self, prompts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
        replies: list[TokenIds] = []
        for start in range(0, len(prompts), self._size):
            replies += _generated(self._model, prompts[start : start + self._size], max_tokens)
        return replies

    def close(self) -> None: ...


class ContinuousBatching:
    """`generate_batch`, at most `size` requests and `max_rows` tokens a forward, with a cache of `num_tokens`.

    The manager is kept between calls, so that none but the first sets its cache up. transformers keeps it on the model:
    until `close`, whoever comes next gets it with these sizes, whatever it asks for.
    """

    name = "continuous batching"

    def __init__(self, model: PreTrainedModel, size: int, *, max_rows: int, num_tokens: int) -> None:
        self._model = model
        own = ContinuousBatchingConfig()
        self._config = ContinuousBatchingConfig(
            max_requests_per_batch=size,
            max_batch_tokens=max_rows,
            num_blocks=-(-num_tokens // own.page_size),
        )

    def answers(self, prompts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
        """Raises GooseRayError if a request fails."""
        model: Any = self._model
        outputs = model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=_greedy(self._model, max_tokens),
            continuous_batching_config=self._config,
            persistent_manager=True,
        )
        replies = [tuple(output.generated_tokens) for output in outputs.values()]
        failed = [output.error for output in outputs.values() if output.error]
        if failed or len(replies) != len(prompts):
            raise GooseRayError(f"continuous batching answered {len(replies)} of {len(prompts)} prompts: {failed[:1]}")
        return replies

    def close(self) -> None:
        model: Any = self._model
        model.destroy_cached_continuous_batching_manager()


def _generated(model: PreTrainedModel, prompts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
    generation = _greedy(model, max_tokens)
    length = max(map(len, prompts))
    ids = torch.tensor([[generation.pad_token_id] * (length - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    run: Any = model.generate
    with torch.inference_mode():
        output = run(ids.to(model.device), attention_mask=mask.to(model.device), generation_config=generation)
    return [_up_to_end(reply, generation.eos_token_id) for reply in output[:, length:].tolist()]


def _greedy(model: PreTrainedModel, max_tokens: int) -> GenerationConfig:
    own = model.generation_config
    end = own.eos_token_id if own is not None else None
    ends = end if isinstance(end, list) else [] if end is None else [end]
    return GenerationConfig(
        max_new_tokens=max_tokens, do_sample=False, eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0
    )


def _up_to_end(reply: Sequence[int], ends: list[int] | None) -> TokenIds:
    for place, token in enumerate(reply):
        if token in (ends or ()):
            return tuple(reply[: place + 1])
    return tuple(reply)
