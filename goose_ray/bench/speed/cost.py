"""What a forward takes by its rows: our runner, and transformers' own forward of the same model, in one run.

Interleaved, round after round, so that whatever else the machine does falls on both alike; medians.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from goose_ray.engine.probes import Probe, chain_batch, tree_batch
from goose_ray.engine.step import ModelRunner
from goose_ray.errors import ConfigError

__all__ = ["ROWS", "RowCost", "measure_rows"]

ROWS = (1, 2, 4, 8, 16, 32, 64)
# Prefill rows at a time.
_CHUNK = 256
_TOKEN = 1


@dataclass(frozen=True, slots=True)
class RowCost:
    """Median milliseconds of a forward of `rows` rows of one sequence, verification included in ours."""

    rows: int
    ours_ms: float
    transformers_ms: float


def measure_rows(
    runner: ModelRunner,
    model: PreTrainedModel,
    *,
    rows: Sequence[int] = ROWS,
    context: int = 512,
    rounds: int = 15,
    clock: Callable[[], float] = time.perf_counter,
    on_round: Callable[[], object] = lambda: None,
) -> list[RowCost]:
    """`model` is another instance of the runner's model, with its own attention. Raises ConfigError if the pool or the
    model is too small for context and rows.
    """
    needed = context + max(rows)
    if needed > min(runner.spec.num_slots, runner.spec.max_model_len):
        raise ConfigError(
            f"context and rows need {needed} tokens; the KV pool has {runner.spec.num_slots}, the model "
            f"{runner.spec.max_model_len}"
        )
    ours, theirs = _Ours(runner, context), _Transformers(model, context)
    seconds: dict[tuple[int, str], list[float]] = {}
    for number in range(rounds + 1):
        for count, who, run in _round(rows, ours, theirs, backwards=number % 2 == 1):
            started_s = clock()
            run()
            # The first round is the warm-up.
            if number:
                seconds.setdefault((count, who), []).append(clock() - started_s)
        on_round()
    return [
        RowCost(count, 1e3 * median(seconds[count, "ours"]), 1e3 * median(seconds[count, "transformers"]))
        for count in rows
    ]


def _round(
    rows: Sequence[int], ours: "_Ours", theirs: "_Transformers", *, backwards: bool
) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Both, one after the other, for each number of rows; who is first changes from round to round."""
    for count in rows:
        both = [("ours", ours.forward(count)), ("transformers", theirs.forward(count))]
        for who, run in both[::-1] if backwards else both:
            yield count, who, run


class _Ours:
    def __init__(self, runner: ModelRunner, context: int) -> None:
        self._runner, self._context = runner, context
        self._probe = Probe("cost", np.arange(context))
        for start in range(0, context, _CHUNK):
            runner.execute(chain_batch([self._probe], start, _CHUNK, harvest_k=0))

    def forward(self, rows: int) -> Callable[[], None]:
        batch = tree_batch([self._probe], rows, self._context + np.arange(rows), harvest_k=0)

        def run() -> None:
            self._runner.execute(batch)

        return run


class _Transformers:
    def __init__(self, model: PreTrainedModel, context: int) -> None:
        self._model, self._context = model, context
        self._cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            for start in range(0, context, _CHUNK):
                self._model(
                    input_ids=self._ids(min(_CHUNK, context - start)), past_key_values=self._cache, use_cache=True
                )

    def forward(self, rows: int) -> Callable[[], None]:
        ids = self._ids(rows)

        def run() -> None:
            with torch.inference_mode():
                logits = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True).logits
                # The tokens are the result, as they are of our forward.
                logits.argmax(-1).tolist()
                self._cache.crop(-rows)

        return run

    def _ids(self, count: int) -> torch.Tensor:
        return torch.full((1, count), _TOKEN, device=self._model.device)
