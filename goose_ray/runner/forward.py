"""A transformers model made to run steps: our attention, packed linear layers, a KV pool.

What the runner of one process and every tensor-parallel rank share. Knows no logits and no request.
"""

import torch
from transformers import PreTrainedModel

from goose_ray.engine.step import ModelSpec, StepBatch
from goose_ray.errors import ConfigError, EngineDeadError
from goose_ray.runner.attention import AttentionBackend, StepAttention
from goose_ray.runner.backends import new_backend
from goose_ray.runner.flex import FlexBackend
from goose_ray.runner.flex_tables import FlexShape
from goose_ray.runner.graphs import RecordedForwards, Recorder
from goose_ray.runner.kv_pool import KVPool
from goose_ray.runner.linear import pack_linears
from goose_ray.runner.support import adopt_attention, check_config, longest_sequence, observe_layers

__all__ = ["ModelForward", "inspect_model"]

# Slots the trial at load writes to.
_MIN_SLOTS = 8


def inspect_model(
    model: PreTrainedModel, *, model_id: str, num_slots: int, max_model_len: int | None = None
) -> ModelSpec:
    """What the engine must know, before anything of the model is changed.

    Raises ModelLoadError naming what its config asks for and is not supported, ConfigError if `max_model_len` is too
    much for the model or `num_slots` too little.
    """
    if num_slots < _MIN_SLOTS:
        raise ConfigError(f"engine.kv_cache_tokens must be at least {_MIN_SLOTS}, not {num_slots}")
    check_config(model)
    return ModelSpec(
        model_id=model_id,
        vocab_size=int(model.config.get_text_config().vocab_size),
        max_model_len=longest_sequence(model.config, max_model_len),
        num_slots=num_slots,
        eos_token_ids=_eos_token_ids(model),
    )


class ModelForward:
    """Takes the model over: sets its attention implementation, so that it can no longer be called without a step, and
    packs its linear layers. The pool holds what this process' attention heads store. `backend` is by default the best
    for the model's device; `recorder` records forwards of few rows where the backend allows it.

    Raises ModelLoadError naming what is not supported, ConfigError if the pool cannot be had.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        spec: ModelSpec,
        backend: AttentionBackend | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._model_id = spec.model_id
        self._backend = backend if backend is not None else new_backend("auto", model.device, model.dtype)
        self.dtype, self.device = model.dtype, model.device
        adopt_attention(model)
        pack_linears(model)
        self._model: PreTrainedModel | None = model
        self._pool: KVPool | None = KVPool(
            observe_layers(model), num_slots=spec.num_slots, dtype=model.dtype, device=model.device
        )
        self._recorded: RecordedForwards[FlexShape] | None = None
        if recorder is not None and isinstance(self._backend, FlexBackend):
            self._recorded = RecordedForwards(self._body, self._backend, self._pool, recorder)

    def hidden_states(self, batch: StepBatch) -> torch.Tensor:
        """[T, hidden_size]; writes the rows' keys and values. Raises EngineDeadError after `release`."""
        if self._model is None or self._pool is None:
            raise EngineDeadError(f"the runner of {self._model_id} was shut down")
        if self._recorded is not None and (recorded := self._recorded(batch)) is not None:
            return recorded
        return self._body(
            torch.from_numpy(batch.token_ids).to(self.device)[None],
            torch.from_numpy(batch.positions).to(self.device)[None],
            self._backend.prepare(batch, self._pool),
        )

    def release(self) -> None:
        """Frees weights and KV. Idempotent."""
        self._model = self._pool = self._recorded = None

    def _body(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """token_ids and positions [1, T] int64 -> [T, hidden_size]"""
        assert self._model is not None
        output = self._model.base_model(input_ids=token_ids, position_ids=positions, use_cache=False, goose_step=step)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    if configured is None:
        configured = getattr(model.config.get_text_config(), "eos_token_id", None)
    if configured is None:
        return ()
    return tuple(configured) if isinstance(configured, list) else (int(configured),)
