"""The ModelRunner of one process: an unmodified transformers model, the KV pool, and verification next to the logits.

Knows no request beyond the step it is given, and no tokens' meaning.
"""

import time

import torch
from transformers import PreTrainedModel

from goose_ray.engine.step import ModelSpec, StepBatch, StepOutput
from goose_ray.errors import EngineDeadError
from goose_ray.runner.attention import AttentionBackend
from goose_ray.runner.checks import BatchChecker
from goose_ray.runner.forward import ModelForward, inspect_model
from goose_ray.runner.graphs import capture
from goose_ray.runner.head import LanguageModelHead
from goose_ray.runner.support import Trial
from goose_ray.runner.verification import score_rows, step_output

__all__ = ["LocalRunner"]


class LocalRunner:
    """Implements `goose_ray.engine.step.ModelRunner`.

    Takes the model over: sets its attention implementation, so that it can no longer be called without a step, and
    packs its linear layers. Raises ModelLoadError naming what is not supported, ConfigError if the pool cannot be had
    or `max_model_len` is too much for the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        model_id: str,
        num_slots: int,
        max_model_len: int | None = None,
        backend: AttentionBackend | None = None,
    ) -> None:
        self._spec = inspect_model(model, model_id=model_id, num_slots=num_slots, max_model_len=max_model_len)
        model.eval()
        model.requires_grad_(False)
        trial = Trial.with_own_attention(model)
        # Not where ranks talk to one another in a forward: that was never tried.
        recorder = capture if model.device.type == "cuda" else None
        self._forward = ModelForward(model, spec=self._spec, backend=backend, recorder=recorder)
        self._head: LanguageModelHead | None = LanguageModelHead(model)
        self._checker = BatchChecker(self._spec)
        first, second = trial.steps()
        trial.check(type(model).__name__, (self.logits(first), self.logits(second)), model.dtype)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def execute(self, batch: StepBatch) -> StepOutput:
        """One forward; see ModelRunner. Raises ValueError on bad arrays, before anything is written."""
        self._checker.check(batch)
        started = time.perf_counter()
        with torch.inference_mode():
            scores = score_rows(batch, self._forward.hidden_states(batch), self._live_head())
            return step_output(batch, scores, started=started)

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """[T, vocab] float32 of one forward that writes its keys and values as `execute` does. For checks."""
        self._checker.check(batch)
        with torch.inference_mode():
            return self._live_head()(self._forward.hidden_states(batch))

    def check_health(self) -> None:
        """Raises EngineDeadError after `shutdown`; a model in this process is otherwise as alive as the caller."""
        self._live_head()

    def shutdown(self) -> None:
        self._forward.release()
        self._head = None

    def _live_head(self) -> LanguageModelHead:
        if self._head is None:
            raise EngineDeadError(f"the runner of {self._spec.model_id} was shut down")
        return self._head
