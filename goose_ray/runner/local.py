"""The ModelRunner of one process: an unmodified transformers model, the KV pool, and verification next to the logits.

Knows no request beyond the step it is given, and no tokens' meaning.
"""

import time

import torch
from transformers import PreTrainedModel

from goose_ray.engine.step import ModelSpec, StepBatch, StepOutput
from goose_ray.errors import ConfigError, EngineDeadError
from goose_ray.runner.attention import AttentionBackend
from goose_ray.runner.checks import BatchChecker
from goose_ray.runner.head import LanguageModelHead
from goose_ray.runner.kv_pool import KVPool
from goose_ray.runner.linear import pack_linears
from goose_ray.runner.logprobs import path_logprobs
from goose_ray.runner.sdpa import SdpaBackend
from goose_ray.runner.support import Trial, adopt_attention, check_config, longest_sequence, observe_layers
from goose_ray.runner.verification import score_rows, verify_trees

__all__ = ["LocalRunner"]

# Slots the trial at load writes to.
_MIN_SLOTS = 8


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
        if num_slots < _MIN_SLOTS:
            raise ConfigError(f"kv_cache_tokens must be at least {_MIN_SLOTS}, not {num_slots}")
        check_config(model)
        model_len = longest_sequence(model.config, max_model_len)
        model.eval()
        model.requires_grad_(False)
        trial = Trial.with_own_attention(model)
        adopt_attention(model)
        pack_linears(model)
        self._head: LanguageModelHead | None = LanguageModelHead(model)
        self._model: PreTrainedModel | None = model
        self._pool: KVPool | None = KVPool(
            observe_layers(model), num_slots=num_slots, dtype=model.dtype, device=model.device
        )
        self._backend = backend if backend is not None else SdpaBackend()
        self._spec = ModelSpec(
            model_id=model_id,
            vocab_size=self._head.vocab_size,
            max_model_len=model_len,
            num_slots=num_slots,
            eos_token_ids=_eos_token_ids(model),
        )
        self._checker = BatchChecker(self._spec)
        first, second = trial.steps()
        trial.check(type(model).__name__, (self.logits(first), self.logits(second)), model.dtype)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def execute(self, batch: StepBatch) -> StepOutput:
        """One forward; see ModelRunner. Raises ValueError on bad arrays, before anything is written."""
        self._checker.check(batch)
        start = time.perf_counter()
        with torch.inference_mode():
            scores = score_rows(batch, self._hidden_states(batch), self._live_head())
            paths = verify_trees(batch, scores)
            logprobs = path_logprobs(scores.kept_logits, scores.kept_index, batch.sequences, paths)
        return StepOutput(
            paths=paths,
            harvest=scores.harvest,
            logprobs=logprobs,
            prompt_logprobs=scores.prompt_logprobs,
            forward_s=time.perf_counter() - start,
        )

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """[T, vocab] float32 of one forward that writes its keys and values as `execute` does. For checks."""
        self._checker.check(batch)
        with torch.inference_mode():
            return self._live_head()(self._hidden_states(batch))

    def check_health(self) -> None:
        """Raises EngineDeadError after `shutdown`; a model in this process is otherwise as alive as the caller."""
        self._live_head()

    def shutdown(self) -> None:
        self._model = self._head = self._pool = None

    def _hidden_states(self, batch: StepBatch) -> torch.Tensor:
        """[T, hidden_size]"""
        if self._model is None or self._pool is None:
            raise EngineDeadError(f"the runner of {self._spec.model_id} was shut down")
        device = self._model.device
        output = self._model.base_model(
            input_ids=torch.from_numpy(batch.token_ids).to(device)[None],
            position_ids=torch.from_numpy(batch.positions).to(device)[None],
            use_cache=False,
            goose_step=self._backend.prepare(batch, self._pool),
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _live_head(self) -> LanguageModelHead:
        if self._head is None:
            raise EngineDeadError(f"the runner of {self._spec.model_id} was shut down")
        return self._head


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    if configured is None:
        configured = model.config.get_text_config().eos_token_id
    if configured is None:
        return ()
    return tuple(configured) if isinstance(configured, list) else (int(configured),)
