"""Log-probabilities of prompt tokens, from the logits of their predecessors' rows, a chunk of rows at a time."""

from collections.abc import Sequence

import numpy as np
import torch

from goose.tree import FloatArray, IntArray
from goose_ray.engine.logprobs import PathLogprobs
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.runner.logprobs import token_logprobs

__all__ = ["PromptScoring"]


class PromptScoring:
    """Of all sequences of a step that ask for it."""

    def __init__(self, batch: StepBatch) -> None:
        self._sequences: Sequence[SequenceStep] = batch.sequences
        # per sequence that asks: its place, its rows that are scored, the tokens there
        self._asked: list[tuple[int, IntArray, IntArray]] = []
        for place, step in enumerate(batch.sequences):
            if step.scored_ids is not None:
                scored = np.flatnonzero(step.scored_ids >= 0)
                self._asked.append((place, step.row_start + scored, step.scored_ids[scored]))
        none = np.empty(0, dtype=np.int64)
        # [m] int64, ascending
        self.rows = np.concatenate([none, *(rows for _, rows, _ in self._asked)])
        self._tokens = np.concatenate([none, *(tokens for _, _, tokens in self._asked)])
        self._num_top = max((self._count(place) for place, _, _ in self._asked), default=0)
        self._parts: list[tuple[FloatArray, IntArray, FloatArray]] = []

    def score(self, chunk: IntArray, logits: torch.Tensor) -> None:
        """The next rows of the batch, [n] ascending, and their logits [n, vocab]."""
        first, last = np.searchsorted(self.rows, (chunk[0], chunk[-1] + 1))
        if first == last:
            return
        places = np.searchsorted(chunk, self.rows[first:last])
        wanted = logits[torch.from_numpy(places).to(logits.device)]
        self._parts.append(token_logprobs(wanted, self._tokens[first:last], self._num_top))

    def result(self) -> tuple[PathLogprobs | None, ...]:
        """One entry a sequence, None where nothing was asked for; () if nobody asked."""
        if not self._asked:
            return ()
        chosen, top_ids, top = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        found: list[PathLogprobs | None] = [None] * len(self._sequences)
        start = 0
        for place, _, tokens in self._asked:
            part, count = slice(start, start + len(tokens)), self._count(place)
            found[place] = PathLogprobs(tokens, chosen[part], top_ids[part, :count], top[part, :count])
            start = part.stop
        return tuple(found)

    def _count(self, place: int) -> int:
        return self._sequences[place].sampling.prompt_logprobs or 0
