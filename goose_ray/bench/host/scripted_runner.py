"""A runner whose forward is a script: texts that were written beforehand, and the rows of the target that wrote them.

All that a runner does beside the model is real: the checks, what attention needs to know of the step, the scores of the
rows and the walk. What stands for the model is one layer of attention over a tiny KV pool and the making of the logits;
its time is kept apart. Like a model it leaves little of the host's data in the processor's caches.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from goose.tree import IntArray
from goose_ray.bench.host.traffic import MarkovTarget, Texts
from goose_ray.engine.step import ModelSpec, StepBatch, StepOutput
from goose_ray.runner.checks import BatchChecker
from goose_ray.runner.kv_pool import KVPool, LayerShape
from goose_ray.runner.logprobs import path_logprobs
from goose_ray.runner.sdpa import Scratch, SdpaStep
from goose_ray.runner.verification import score_rows, verify_trees

__all__ = ["ScriptedRunner"]

# Query heads, key heads and width of the layer that stands for all.
_HEADS, _KV_HEADS, _DIM = 9, 3, 8
# Logits: of tokens that no row names, and how far the text's own next token stands above the others. Where tokens are
# sampled no noise may reach it.
_OTHERS, _LEAD, _SAMPLED_LEAD = -25.0, 0.1, 100.0
# What a forward reads: more than the processor's caches hold.
_NUM_WEIGHTS = 1 << 23
# Seconds that a forward, and each row of it, stand for.
_FORWARD_S, _ROW_S = 0.03, 0.0001


class ScriptedRunner:
    """Implements `goose_ray.engine.step.ModelRunner` for requests named by the number of their text.

    The likeliest token after every beginning of a text is the text's next one; elsewhere the target's rows decide.
    """

    def __init__(
        self,
        target: MarkovTarget,
        texts: Texts,
        *,
        first_id: int,
        vocab_size: int,
        num_slots: int,
        sampled: bool,
        clock: Callable[[], float],
    ) -> None:
        """Token t of target and texts is `first_id` + t of the vocabulary. `sampled`: requests have a temperature.
        `clock` measures `model_s` and `logits_s`.
        """
        self._target, self._texts, self._first_id = target, texts, first_id
        self._spec = ModelSpec(
            model_id="script",
            vocab_size=vocab_size,
            max_model_len=texts.token_ids.shape[1],
            num_slots=num_slots,
            eos_token_ids=(),
        )
        self._lead = _SAMPLED_LEAD if sampled else _LEAD
        self._clock = clock
        self._checker = BatchChecker(self._spec)
        self._scratch = Scratch()
        layer = LayerShape(kv_heads=_KV_HEADS, key_dim=_DIM, value_dim=_DIM)
        self._pool = KVPool([layer], num_slots=num_slots, dtype=torch.float32, device=torch.device("cpu"))
        self._weights = np.ones(_NUM_WEIGHTS)
        self._batch: StepBatch | None = None
        # by which `now` is ahead of the wall
        self._ahead_s = 0.0
        # seconds, by the clock, of what stood for the model so far, and of what was done with the logits next to it
        self.model_s = 0.0
        self.logits_s = 0.0

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def now(self) -> float:
        """Wall seconds, in which every forward has taken what it stands for."""
        return time.perf_counter() + self._ahead_s

    def execute(self, batch: StepBatch) -> StepOutput:
        self._checker.check(batch)
        self._ahead_s += _FORWARD_S + _ROW_S * batch.num_rows
        with torch.inference_mode():
            hidden = self.hidden_states(batch)
            started_s, model_s = self._clock(), self.model_s
            scores = score_rows(batch, hidden, self.logits)
            self.logits_s += self._clock() - started_s - (self.model_s - model_s)
            paths = verify_trees(batch, scores)
            logprobs = path_logprobs(scores.kept_logits, scores.kept_index, batch.sequences, paths)
        return StepOutput(paths=paths, harvest=scores.harvest, logprobs=logprobs, forward_s=0.0)

    def hidden_states(self, batch: StepBatch) -> torch.Tensor:
        """[T, 1]: the numbers of the rows."""
        attention = SdpaStep(batch, self._pool, self._scratch)
        attention.plans(None)
        with self._model():
            self._batch = batch
            query = torch.zeros(1, _HEADS, batch.num_rows, _DIM)
            key = torch.zeros(1, _KV_HEADS, batch.num_rows, _DIM)
            attention.attend(0, query, key, key, scaling=1.0, sliding_window=None)
            self._weights.sum()
            return torch.arange(batch.num_rows, dtype=torch.float32)[:, None]

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, 1] numbers of rows -> [n, vocab] float32"""
        assert self._batch is not None
        with self._model():
            chosen = rows[:, 0].long().numpy()
            ids, scores = self._script(self._batch)
            logits = torch.full((len(chosen), self._spec.vocab_size), _OTHERS)
            return logits.scatter_(1, torch.from_numpy(ids[chosen]), torch.from_numpy(scores[chosen]))

    def check_health(self) -> None:
        """Nothing can die."""

    def shutdown(self) -> None:
        """Nothing is held that outlives the object."""

    @contextmanager
    def _model(self) -> Iterator[None]:
        """What is done here stands for the model."""
        started_s, wall_s = self._clock(), time.perf_counter()
        yield
        self.model_s += self._clock() - started_s
        self._ahead_s -= time.perf_counter() - wall_s

    def _script(self, batch: StepBatch) -> tuple[IntArray, NDArray[np.float32]]:
        """[T, k + 1] int64 and float32: tokens and logits of every row; in the last column that of the likeliest."""
        texts = self._texts
        counts = [step.row_end - step.row_start for step in batch.sequences]
        numbers = np.repeat([int(step.request_id) for step in batch.sequences], counts)
        tokens, positions = batch.token_ids - self._first_id, batch.positions
        on_text = texts.token_ids[numbers, positions] == tokens
        for row, parent in enumerate(batch.parents.tolist()):
            on_text[row] &= parent < 0 or on_text[parent]
        before = np.where(positions > 0, texts.token_ids[numbers, positions - 1], -1)
        ids, probs = self._target.rows(np.where(batch.parents < 0, before, tokens[batch.parents]), tokens)
        ids[on_text] = texts.top_ids[numbers[on_text], positions[on_text]]
        probs[on_text] = texts.top_probs[numbers[on_text], positions[on_text]]
        following = texts.token_ids[numbers, np.minimum(positions + 1, texts.token_ids.shape[1] - 1)]
        likeliest = np.where(on_text, following, ids[:, 0])
        scores = np.log(probs)
        highest = scores.max(axis=1) + np.where(on_text, self._lead, 0.0)
        return (
            np.column_stack((ids, likeliest)) + self._first_id,
            np.column_stack((scores, highest)).astype(np.float32),
        )
