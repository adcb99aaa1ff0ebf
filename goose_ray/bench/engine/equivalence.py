"""The equivalence matrix: every way to sample under every policy, alone, together, and short of room (KV slots).

A run sends every prompt with every way to sample to one engine, so that each kind is checked beside the others. What
it gives must be what plain decoding gives: policy `autoregressive`, one request at a time, nothing cached. Token ids
must be equal; log-probabilities may differ by rounding.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from goose.policies.autoregressive import AutoregressivePolicy
from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.engine.decoders import Case
from goose_ray.bench.engine.exact import SAMPLING_SEED, Difference, first_difference
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import ModelRunner, ModelSpec, StepBatch, StepOutput
from goose_ray.engine.structured import StructuredOutput

__all__ = ["LOGPROB_TOLERANCE", "Answer", "Cell", "EquivalenceRun", "FewerSlots", "Setting", "answers", "samplings"]

LOGPROB_TOLERANCE = 1e-3
# Long enough to be cut by most limits, with parts that the grammar forces and parts that the model chooses.
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "maxLength": 60},
            "confidence": {"type": "number"},
            "steps": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 4},
        },
        "required": ["answer", "confidence", "steps"],
        "additionalProperties": False,
    }
)
# A sequence is admitted if there is room for a tree of each; with small ones sequences grow into one another's room.
_SHORT_BUDGET = 4


def samplings(max_tokens: int) -> dict[str, SamplingParams]:
    """The ways to sample, by name."""
    plain = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    sampled = replace(plain, temperature=0.7, top_p=0.9, seed=SAMPLING_SEED)
    return {
        "greedy": plain,
        "sampled": sampled,
        "penalties": replace(plain, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5),
        # greedy, a model seldom tries what a mask must keep from it
        "json_schema": replace(sampled, structured=StructuredOutput("json_schema", _SCHEMA)),
        "logprobs": replace(plain, logprobs=5),
    }


@dataclass(frozen=True, slots=True)
class Setting:
    """One run's policy and requests at a time; `short_of_room` has sequences preempted."""

    policy: str
    concurrency: int
    short_of_room: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: tuple[int, ...]
    # None if they were not asked for
    logprobs: tuple[TokenLogprobs, ...] | None = None

    def gap(self, other: "Answer") -> float:
        """The largest difference between the log-probabilities of two answers, as far as their tokens are the same.

        Alternatives are compared by rank: which of two equals comes first is a matter of rounding.
        """
        gaps = [0.0]
        for one, another in zip(self.logprobs or (), other.logprobs or (), strict=False):
            if one.token_id != another.token_id:
                break
            gaps.append(abs(one.logprob - another.logprob))
            gaps += [abs(a - b) for (_, a), (_, b) in zip(one.top, another.top, strict=True)]
        return max(gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way to sample in one run."""

    sampling: str
    setting: Setting
    num_cases: int
    differences: tuple[Difference, ...]
    # None where no log-probabilities were asked for
    largest_logprob_gap: float | None
    # of the whole run
    num_preemptions: int

    @property
    def equal(self) -> bool:
        return not self.differences and (self.largest_logprob_gap or 0.0) <= LOGPROB_TOLERANCE


@dataclass(frozen=True, slots=True)
class FewerSlots:
    """The runner with the first `num_slots` of its KV slots alone."""

    runner: ModelRunner
    num_slots: int

    @property
    def spec(self) -> ModelSpec:
        return replace(self.runner.spec, num_slots=self.num_slots)

    def execute(self, batch: StepBatch) -> StepOutput:
        return self.runner.execute(batch)

    def check_health(self) -> None:
        self.runner.check_health()

    def shutdown(self) -> None:
        """The slots are another's."""


@dataclass(frozen=True, slots=True)
class EquivalenceRun:
    """`budget` is that of runs that are not short of slots. `on_answer` is called for every answer of any run."""

    parts: ReplicaParts
    cases: Sequence[Case]
    samplings: Mapping[str, SamplingParams]
    budget: int
    on_answer: Callable[[], object] = field(default=lambda: None)

    def cells(self, settings: Iterable[Setting], on_cell: Callable[[Cell], object] = lambda cell: None) -> list[Cell]:
        """One a setting and way to sample; `on_cell` sees each as it is done."""
        expected, _ = self._run(Setting(AutoregressivePolicy.name, 1), EngineConfig(budget=1, prefix_cache=False))
        cells = []
        for setting in settings:
            budget = _SHORT_BUDGET if setting.short_of_room else self.budget
            found, num_preemptions = self._run(setting, EngineConfig(budget=budget))
            for name in self.samplings:
                cell = self._cell(name, setting, expected, found, num_preemptions)
                on_cell(cell)
                cells.append(cell)
        return cells

    def _run(self, setting: Setting, config: EngineConfig) -> tuple[dict[str, Answer], int]:
        requests = [
            GenerationRequest(
                request_id=_request_id(name, index), prompt_token_ids=case.prompt.token_ids, sampling=sampling
            )
            for index, case in enumerate(self.cases)
            for name, sampling in self.samplings.items()
        ]
        parts = self.parts
        if setting.short_of_room:
            num_slots = _short_slots(requests, setting.concurrency, len(self.samplings))
            parts = replace(parts, runner=FewerSlots(parts.runner, min(num_slots, parts.runner.spec.num_slots)))
        config = config.model_copy(update={"policy": setting.policy, "max_running_requests": setting.concurrency})
        engine = new_engine(parts, config)
        found = answers(engine, requests, concurrency=setting.concurrency, on_answer=self.on_answer)
        return found, engine.stats().num_preemptions

    def _cell(
        self,
        name: str,
        setting: Setting,
        expected: Mapping[str, Answer],
        found: Mapping[str, Answer],
        num_preemptions: int,
    ) -> Cell:
        differences, gaps = [], []
        for index, case in enumerate(self.cases):
            wanted, got = expected[_request_id(name, index)], found[_request_id(name, index)]
            difference = first_difference(case.name, wanted.token_ids, got.token_ids)
            if difference is not None:
                differences.append(difference)
            if wanted.logprobs is not None:
                gaps.append(wanted.gap(got))
        return Cell(
            sampling=name,
            setting=setting,
            num_cases=len(self.cases),
            differences=tuple(differences),
            largest_logprob_gap=max(gaps, default=None),
            num_preemptions=num_preemptions,
        )


def answers(
    engine: Engine, requests: Sequence[GenerationRequest], *, concurrency: int, on_answer: Callable[[], object]
) -> dict[str, Answer]:
    """By request id; `concurrency` requests at a time, begun in order."""
    waiting = deque(requests)
    running: dict[str, tuple[list[int], list[TokenLogprobs]]] = {}
    done: dict[str, Answer] = {}
    while waiting or running:
        while waiting and len(running) < concurrency:
            engine.add_request(waiting[0])
            running[waiting.popleft().request_id] = ([], [])
        for output in engine.step():
            token_ids, logprobs = running[output.request_id]
            token_ids += output.token_ids
            logprobs += output.logprobs or ()
            if output.finish_reason is not None:
                del running[output.request_id]
                asked = output.logprobs is not None
                done[output.request_id] = Answer(tuple(token_ids), tuple(logprobs) if asked else None)
                on_answer()
    return done


def _request_id(name: str, index: int) -> str:
    return f"{name} {index}"


def _short_slots(requests: Sequence[GenerationRequest], concurrency: int, num_alike: int) -> int:
    """Enough for the largest request alone, and for half of what so many at a time come to.

    `num_alike` requests that follow one another have the same prompt, and share its slots.
    """
    prompts = [len(request.prompt_token_ids) for request in requests]
    replies = [request.sampling.max_tokens for request in requests]
    typical = concurrency * (sum(replies) / len(replies) + sum(prompts) / len(prompts) / num_alike)
    return max(int(typical / 2), *(prompt + reply for prompt, reply in zip(prompts, replies, strict=True)))
