"""A replica without a model: a real engine whose replies are written beforehand, on a clock of the caller's.

Scheduler, KV memory and prefix cache are the real ones; a step takes what its rows are said to take. One token a
sequence and step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from goose.policies.autoregressive import AutoregressivePolicy
from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.stats import EngineStats
from goose_ray.engine.step import ModelSpec, StepBatch, StepOutput, VerifiedPath
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["EchoReplica", "Step", "StepPrice"]


@dataclass(frozen=True, slots=True)
class StepPrice:
    """Seconds of a step: `forward_s`, and `row_s` for each of its rows."""

    forward_s: float
    row_s: float


@dataclass(frozen=True, slots=True)
class Step:
    seconds: float
    # requests that took part for the first time, and those that got their first token or their last one with it
    admitted: tuple[str, ...]
    begun: tuple[str, ...]
    finished: tuple[str, ...]


class EchoReplica:
    def __init__(self, tokenizer: Tokenizer, config: EngineConfig, price: StepPrice, *, max_model_len: int) -> None:
        self._price = price
        self._replies: dict[str, tuple[int, ...]] = {}
        self._waiting: set[str] = set()
        self._silent: set[str] = set()
        spec = ModelSpec(
            model_id="echo",
            vocab_size=tokenizer.vocab_size,
            max_model_len=max_model_len,
            num_slots=config.kv_cache_tokens,
            eos_token_ids=(),
        )
        plain = config.model_copy(update={"policy": AutoregressivePolicy.name, "budget": 1})
        self._engine = Engine(
            _EchoRunner(spec, self._replies),
            Speculator(policy=AutoregressivePolicy.name, budget=1, pool_tokens=0),
            tokenizer,
            plain,
        )

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats()

    def add(self, request_id: str, prompt: tuple[int, ...], reply: tuple[int, ...]) -> None:
        sampling = SamplingParams(max_tokens=len(reply), temperature=0.0, ignore_eos=True)
        self._engine.add_request(GenerationRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling))
        self._replies[request_id] = reply
        self._waiting.add(request_id)
        self._silent.add(request_id)

    def step(self) -> Step:
        """There must be a request."""
        outputs = self._engine.step()
        (record,) = self._engine.trace.last(1)
        admitted = self._waiting.intersection(sequence.request_id for sequence in record.sequences)
        begun = self._silent.intersection(output.request_id for output in outputs)
        finished = tuple(output.request_id for output in outputs if output.finish_reason)
        self._waiting -= admitted
        self._silent -= begun
        for request_id in finished:
            del self._replies[request_id]
        seconds = self._price.forward_s + self._price.row_s * record.rows
        return Step(seconds, tuple(sorted(admitted)), tuple(sorted(begun)), finished)


class _EchoRunner:
    """Implements `goose_ray.engine.step.ModelRunner`."""

    def __init__(self, spec: ModelSpec, replies: Mapping[str, tuple[int, ...]]) -> None:
        self._spec = spec
        self._replies = replies

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def execute(self, batch: StepBatch) -> StepOutput:
        nothing = np.empty(0, dtype=np.int64)
        paths = tuple(
            None
            if step.tree is None
            else VerifiedPath(nothing, np.array([self._replies[step.request_id][step.output_position]]))
            for step in batch.sequences
        )
        return StepOutput(paths=paths, harvest=None, forward_s=0.0)

    def check_health(self) -> None:
        """Nothing can die."""

    def shutdown(self) -> None:
        """Nothing is held that outlives the object."""
