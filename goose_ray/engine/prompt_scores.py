"""Log-probabilities of one prompt's tokens, gathered chunk by chunk as the prompt is computed."""

import numpy as np

from goose.tree import IntArray
from goose_ray.engine.logprobs import PathLogprobs, TokenLogprobs
from goose_ray.engine.sampling_params import SamplingParams

__all__ = ["PromptScores"]


class PromptScores:
    """Costs nothing where they are not asked for. A prompt computed again, after a preemption, is not scored again."""

    __slots__ = ("_num_missing", "_num_prompt", "_parts")

    def __init__(self, num_prompt: int, sampling: SamplingParams) -> None:
        self._num_prompt = num_prompt
        # of all prompt tokens but the first, which nothing predicts
        self._num_missing = 0 if sampling.prompt_logprobs is None else num_prompt - 1
        self._parts: list[PathLogprobs] | None = None if sampling.prompt_logprobs is None else []

    def wanted(self, tokens: IntArray, start: int, count: int) -> IntArray | None:
        """The tokens behind those at `start` to `start + count - 1`, -1 where none is to be scored; None: nowhere."""
        first_missing = self._num_prompt - 1 - self._num_missing
        if not self._num_missing or start + count <= first_missing:
            return None
        wanted = np.full(count, -1, dtype=np.int64)
        begin, end = max(start, first_missing), min(start + count, self._num_prompt - 1)
        wanted[begin - start : end - start] = tokens[begin + 1 : end + 1]
        return wanted if end > begin else None

    def add(self, part: PathLogprobs) -> None:
        """What was wanted last."""
        if self._parts is not None:
            self._parts.append(part)
            self._num_missing -= len(part.token_ids)

    def take(self) -> tuple[TokenLogprobs, ...] | None:
        """All of them, once; None before and after, and where they are not asked for."""
        if self._parts is None or self._num_missing:
            return None
        parts, self._parts = self._parts, None
        return tuple(one for part in parts for one in part.of_tokens())
