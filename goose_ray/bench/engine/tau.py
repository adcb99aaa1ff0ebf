"""Acceptance of one policy over prompt files: what each step commits, what it verifies, and that nothing changed.

Knows neither files' formats nor how results are shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.engine.references import ReferenceStore
from goose_ray.bench.prompts import PromptFile
from goose_ray.bench.recordings import is_session
from goose_ray.bench.repetition import is_repetitive
from goose_ray.bench.replies import Reply, Session, greedy, hold
from goose_ray.config import EngineConfig
from goose_ray.engine.request import SourceStats
from goose_ray.engine.stats import add_sources

__all__ = ["BenchmarkTau", "Part", "PartName", "TauRun", "compared", "macro_tau"]

PartName = Literal["total", "natural", "repetitive"]


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a benchmark's replies. `tau` is committed tokens a step, bonus included; 0 where there are none."""

    requests: int
    tokens: int
    steps: int

    @classmethod
    def of(cls, replies: Sequence[Reply]) -> "Part":
        steps = sum(reply.stats.steps for reply in replies)
        return cls(len(replies), sum(reply.stats.committed for reply in replies), steps)

    @property
    def tau(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTau:
    """One policy on one prompt file."""

    name: str
    total: Part
    # replies with fewer, and with at least half of their 4-grams copied from what stands before them
    natural: Part
    repetitive: Part
    # nodes verified per sequence and step, anchor included
    nodes_per_step: float
    by_source: Mapping[str, SourceStats]
    # prompts that were too long and lost their middle
    num_cut: int
    # "id#turn" of the replies that are not token for token those of plain greedy decoding
    inexact: tuple[str, ...]

    @property
    def exact(self) -> bool:
        return not self.inexact


@dataclass(frozen=True, slots=True, kw_only=True)
class TauRun:
    """How to measure: the engine's configuration names policy and budget."""

    parts: ReplicaParts
    engine: EngineConfig
    references: ReferenceStore
    chat: bool
    max_tokens: int
    concurrency: int

    def measure(self, prompts: PromptFile, on_reply: Callable[[], object] = lambda: None) -> BenchmarkTau:
        """Starts with an engine that has learned nothing, so that the order of the files does not matter.

        `on_reply` is called twice a request: when it is answered, and when its reference is there.
        """
        engine = new_engine(self.parts, self.engine)
        limit = engine.max_model_len - self.max_tokens
        sessions = [
            Session.of_dialogue(dialogue, self.parts.tokenizer, chat=self.chat, limit=limit)
            for dialogue in prompts.dialogues
        ]
        replies: list[Reply] = []

        def keep(reply: Reply) -> None:
            replies.append(reply)
            on_reply()

        hold(engine, sessions, greedy(self.max_tokens), concurrency=self.concurrency, on_reply=keep)
        plain = self.references.token_ids([reply.prompt.token_ids for reply in replies], self.max_tokens, on_reply)
        inexact = [
            f"{reply.session_id}#{reply.turn}" for reply in replies if plain[reply.prompt.token_ids] != reply.token_ids
        ]
        return _summary(prompts.name, replies, inexact)


def compared(benchmarks: Sequence[BenchmarkTau]) -> Sequence[BenchmarkTau]:
    """The benchmarks that means are of: sessions stand apart, unless there is nothing else."""
    return [benchmark for benchmark in benchmarks if not is_session(benchmark.name)] or benchmarks


def macro_tau(benchmarks: Sequence[BenchmarkTau], part: PartName = "total") -> float | None:
    """The mean over the compared benchmarks that have such replies, each of equal weight; None if none has."""
    parts: list[Part] = [getattr(benchmark, part) for benchmark in compared(benchmarks)]
    taus = [own.tau for own in parts if own.steps]
    return sum(taus) / len(taus) if taus else None


def _summary(name: str, replies: Sequence[Reply], inexact: Sequence[str]) -> BenchmarkTau:
    total = Part.of(replies)
    drafted = sum(reply.stats.drafted for reply in replies)
    by_source: dict[str, SourceStats] = {}
    for reply in replies:
        add_sources(by_source, {key: (s.attempted, s.accepted) for key, s in reply.stats.by_source.items()})
    repetitive = [reply for reply in replies if is_repetitive(reply.prompt.token_ids, reply.token_ids)]
    return BenchmarkTau(
        name=name,
        total=total,
        natural=Part.of([reply for reply in replies if reply not in repetitive]),
        repetitive=Part.of(repetitive),
        nodes_per_step=1 + drafted / total.steps if total.steps else 0.0,
        by_source=by_source,
        num_cut=sum(reply.prompt.cut for reply in replies),
        inexact=tuple(inexact),
    )
