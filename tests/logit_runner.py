"""A runner whose model says what it is told to, through logits: verification, rules and log-probabilities are real."""

from dataclasses import replace
from typing import Any

import torch
from fakes import FakeRunner, NextToken

from goose.verify import VerifiedPath
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import HarvestRows, StepBatch, StepOutput
from goose_ray.runner.logprobs import path_logprobs
from goose_ray.runner.verification import RowScores, score_rows, verify_trees

__all__ = ["LogitRunner"]

_GREEDY = SamplingParams(temperature=0.0)
# Far above all else, which is between 0 and 1: sampled replies are the model's too.
_TOP = 50.0


class LogitRunner(FakeRunner):
    """The model's token has the largest logit by far; the others' are noise that depends on the token before."""

    def __init__(self, next_token: NextToken, **options: Any) -> None:
        super().__init__(next_token, **options)
        self._model = next_token
        size = self.spec.vocab_size
        self._noise = torch.rand(97, size, generator=torch.Generator().manual_seed(0))
        self._scores: RowScores | None = None

    def execute(self, batch: StepBatch) -> StepOutput:
        output = super().execute(batch)
        scores = self._live_scores()
        logprobs = path_logprobs(scores.kept_logits, scores.kept_index, batch.sequences, output.paths)
        return replace(output, logprobs=logprobs, prompt_logprobs=scores.prompt_logprobs)

    def _verify(self, batch: StepBatch) -> tuple[VerifiedPath | None, ...]:
        # [T, 2]: the token of the row and the one that the model says behind it
        hidden = torch.tensor(self._rows(batch), dtype=torch.int64)
        self._scores = score_rows(batch, hidden, self._logits)
        return verify_trees(batch, self._scores)

    def _harvest(self, batch: StepBatch) -> HarvestRows | None:
        return self._live_scores().harvest

    def _rows(self, batch: StepBatch) -> list[tuple[int, int]]:
        rows = []
        for step in batch.sequences:
            anchor = step.row_start + step.num_chain - 1
            for row in range(step.row_start, step.row_end):
                depth = int(step.tree.depths[row - anchor]) if step.tree is not None and row >= anchor else 0
                tail = self._tail(batch, step, row)
                rows.append((tail[-1], self._model(tail, _GREEDY, step.output_position + depth)))
        return rows

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        logits = self._noise[rows[:, 0] % len(self._noise)].clone()
        logits[torch.arange(len(rows)), rows[:, 1]] = _TOP
        return logits

    def _live_scores(self) -> RowScores:
        assert self._scores is not None
        return self._scores
