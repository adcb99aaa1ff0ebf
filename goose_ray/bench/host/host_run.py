"""What a step costs the host beside the model: engine, speculator and runner at work, the forward scripted.

A batch of long requests with texts of `traffic.py` is decoded by a real engine. Its forwards take no time
of the host's but stand for some by the engine's own clock, so that an automatic budget has something to weigh.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from goose.cost import CostModel
from goose.speculator import Speculator
from goose_ray.bench.host import scripted_runner
from goose_ray.bench.host.scripted_runner import ScriptedRunner
from goose_ray.bench.host.stage_clocks import Place, stage_clocks
from goose_ray.bench.host.traffic import MarkovTarget
from goose_ray.config import EngineConfig
from goose_ray.engine import engine as engine_module
from goose_ray.engine import step_commit
from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.drafting import Drafting
from goose_ray.engine.engine import Engine
from goose_ray.engine.kv_memory import KVMemory
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.scheduler import Scheduler
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.stats_recorder import StatsRecorder
from goose_ray.engine.step_cost import StepCost
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.runner.checks import BatchChecker
from goose_ray.runner.sdpa import SdpaStep

__all__ = ["HostCost", "HostRun"]

# Ids below are special tokens and single bytes, which no text is made of.
_FIRST_ID = 512
# Steps before those that are measured: tables are warm by then, and the size of trees has come to rest.
_WARM_STEPS = 64
# Tokens that a step of such text commits at most, on average over many.
_MAX_TAU = 6
# Stages that are told apart from the host's.
_BESIDE = ("logits", "model")
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """Medians over steps; milliseconds of a step of the whole batch."""

    steps: int
    sequences: int
    # means: nodes verified in all, anchors included, and tokens committed per sequence
    nodes: float
    tau: float
    # all but the two below
    ms: float
    # the parts of it, measured in as many further steps; what they leave over is glue
    stages_ms: Mapping[str, float]
    # tensor operations over the vocabulary on the model's device: the likeliest token and the successors of every row
    logits_ms: float
    # what stood for the model
    model_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """`nodes`: of the whole batch, anchors included, at least; rounded up to as many for each sequence."""

    policy: str
    budget: int | Literal["auto"]
    sequences: int
    nodes: int
    context: int
    steps: int
    temperature: float = 0.0
    num_threads: int = 1
    clock: Callable[[], float] = time.perf_counter

    def measure(self, tokenizer: Tokenizer, vocab_size: int) -> HostCost:
        """Raises ValueError unless every sequence has a node."""
        if self.nodes < self.sequences:
            raise ValueError(f"nodes must be at least the number of sequences, {self.sequences}, not {self.nodes}")
        script = _Script(self, tokenizer, vocab_size)
        script.fill()
        for _ in range(_WARM_STEPS):
            script.step()
        taken = [script.step() for _ in range(self.steps)]
        with stage_clocks(_stages(), self.clock) as spent:
            by_stage = []
            for _ in range(self.steps):
                before = dict(spent)
                script.step()
                by_stage.append({name: spent[name] - before[name] for name in spent})
        return HostCost(
            steps=self.steps,
            sequences=self.sequences,
            nodes=float(np.mean([step.num_nodes for step in taken])),
            tau=float(np.mean([step.num_committed for step in taken])) / self.sequences,
            ms=_median_ms([step.host_s for step in taken]),
            stages_ms={
                name: _median_ms([step[name] for step in by_stage]) for name in by_stage[0] if name not in _BESIDE
            },
            logits_ms=_median_ms([step.logits_s for step in taken]),
            model_ms=_median_ms([step.model_s for step in taken]),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    host_s: float
    logits_s: float
    model_s: float
    num_nodes: int
    num_committed: int


class _Script:
    """A batch of live requests, each with a reply long enough for all steps."""

    def __init__(self, run: HostRun, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._run = run
        target = MarkovTarget(vocab_size - _FIRST_ID, _SEED)
        num_rows = -(-run.nodes // run.sequences) * run.sequences
        # At the worst prompts get half of the rows.
        num_steps = 2 * run.context * run.sequences // num_rows + _WARM_STEPS + 2 * run.steps
        self._length = run.context + _MAX_TAU * num_steps
        texts = target.write(run.sequences, self._length, np.random.default_rng(_SEED))
        self._runner = ScriptedRunner(
            target,
            texts,
            first_id=_FIRST_ID,
            vocab_size=vocab_size,
            num_slots=(run.sequences + 1) * self._length,
            sampled=run.temperature > 0,
            clock=run.clock,
        )
        config = EngineConfig(
            policy=run.policy,
            budget=run.budget,
            max_batch_rows=num_rows,
            max_running_requests=run.sequences,
        )
        speculator = Speculator(
            policy=run.policy, budget=None if run.budget == "auto" else run.budget, num_threads=run.num_threads
        )
        cost = CostModel(max_rows=num_rows) if run.budget == "auto" else None
        self._engine = Engine(self._runner, speculator, tokenizer, config, cost=cost, clock=self._runner.now)
        sampling = SamplingParams(
            max_tokens=self._length - run.context, temperature=run.temperature, seed=_SEED, ignore_eos=True
        )
        for number, text in enumerate(texts.token_ids[:, : run.context] + _FIRST_ID):
            self._engine.add_request(
                GenerationRequest(request_id=str(number), prompt_token_ids=tuple(text.tolist()), sampling=sampling)
            )

    def fill(self) -> None:
        """Computes the prompts."""
        while self._engine.trace.last(1) == () or any(s.prefill_rows for s in self._engine.trace.last(1)[0].sequences):
            self._engine.step()

    def step(self) -> _Step:
        logits_s, model_s, started_s = self._runner.logits_s, self._runner.model_s, self._run.clock()
        self._engine.step()
        taken_s = self._run.clock() - started_s
        logits_s, model_s = self._runner.logits_s - logits_s, self._runner.model_s - model_s
        record = self._engine.trace.last(1)[0]
        committed = sum(sequence.committed for sequence in record.sequences)
        return _Step(taken_s - logits_s - model_s, logits_s, model_s, record.rows, committed)


def _stages() -> dict[str, list[Place]]:
    """Where the time goes: functions that are called once a step or once a sequence."""
    return {
        "schedule": [(Scheduler, "schedule")],
        "cost": [(StepCost, "seconds"), (StepCost, "observe")],
        "draft": [(Drafting, "propose")],
        "batch": [(engine_module, "build_batch"), (engine_module, "row_counts")],
        "slots": [(KVMemory, "allocate"), (KVMemory, "free"), (step_commit, "kept_rows")],
        "check": [(BatchChecker, "check")],
        "attention": [(SdpaStep, "__init__"), (SdpaStep, "plans")],
        "model": [(ScriptedRunner, "hidden_states"), (ScriptedRunner, "logits")],
        "logits": [(scripted_runner, "score_rows")],
        "walk": [(scripted_runner, "verify_trees"), (scripted_runner, "path_logprobs")],
        "deliver": [(OutputStream, "push")],
        "commit": [(SequenceState, "computed"), (SequenceState, "commit")],
        "observe": [(Drafting, "observe"), (step_commit, "harvest_of")],
        "report": [(SequenceState, "report")],
        "statistics": [
            (StatsRecorder, "record_admission"),
            (StatsRecorder, "record_tree"),
            (StatsRecorder, "record_tokens"),
            (StatsRecorder, "record_step"),
            (engine_module, "add_sources"),
        ],
        "trace": [(engine_module, "record_step")],
    }


def _median_ms(seconds: Sequence[float]) -> float:
    return 1e3 * float(np.median(seconds))
