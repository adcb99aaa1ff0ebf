"""Tokens per second of several policies in the same engine, interleaved: what speculation is worth on this machine.

Every policy has an engine of its own, which learns as it goes, and all run on one model. Dialogues are taken in groups
that fill the batch; each group is answered by one policy after the other, in an order that turns around from group to
group and from round to round, so that whatever else the machine does falls on all alike.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.prompts import PromptFile
from goose_ray.bench.repetition import is_repetitive
from goose_ray.bench.replies import Reply, Session, greedy, hold
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.stats import EngineStats

__all__ = ["BenchmarkSpeed", "Contender", "ContenderSpeed", "SpeedRun"]

PartName = Literal["natural", "repetitive"]


@dataclass(frozen=True, slots=True)
class Contender:
    policy: str
    budget: int | Literal["auto"]

    @property
    def name(self) -> str:
        return f"{self.policy}:{self.budget}"


@dataclass(slots=True)
class ContenderSpeed:
    """One contender on one benchmark."""

    # of all groups and rounds, prompts included
    seconds: float = 0.0
    replies: list[Reply] = field(default_factory=list)
    stats: EngineStats = field(default_factory=EngineStats)

    @property
    def tokens(self) -> int:
        return sum(len(reply.token_ids) for reply in self.replies)

    @property
    def steps(self) -> int:
        return sum(reply.stats.steps for reply in self.replies)

    @property
    def tau(self) -> float:
        return sum(reply.stats.committed for reply in self.replies) / max(1, self.steps)

    @property
    def nodes_per_step(self) -> float:
        """Verified per sequence and step, anchor included."""
        return 1 + sum(reply.stats.drafted for reply in self.replies) / max(1, self.steps)

    @property
    def prediction_error(self) -> float | None:
        """Mean distance between predicted and observed duration of a step, as a part of it; None without a budget by
        time.
        """
        if not self.stats.predicted_step_seconds:
            return None
        return self.stats.step_error_seconds / self.stats.step_seconds


@dataclass(frozen=True, slots=True)
class BenchmarkSpeed:
    """All contenders on one prompt file, in the order in which they were named."""

    name: str
    contenders: tuple[ContenderSpeed, ...]

    @property
    def equal(self) -> bool:
        """Whether all gave the same tokens, without which their speeds say little."""
        first, *others = [
            {(reply.session_id, reply.turn): reply.token_ids for reply in contender.replies}
            for contender in self.contenders
        ]
        return all(other == first for other in others)

    def speedup(self, index: int) -> float:
        """Tokens per second of a contender over those of the first."""
        first, other = self.contenders[0], self.contenders[index]
        return (other.tokens / other.seconds) / (first.tokens / first.seconds)

    def decoding_speedup(self, index: int) -> float | None:
        """Of the time after a reply's first tokens; None if all replies ended with those."""
        rates = []
        for contender in (self.contenders[0], self.contenders[index]):
            seconds = sum(reply.seconds - reply.first_s for reply in contender.replies)
            if not seconds:
                return None
            rates.append(contender.tokens / seconds)
        return rates[1] / rates[0]

    def part_speedup(self, index: int, part: PartName) -> float | None:
        """Of the time from asking to the end, of the natural or repetitive replies; None where there are none."""
        rates = []
        for contender in (self.contenders[0], self.contenders[index]):
            replies = [reply for reply in contender.replies if _part_of(reply) == part]
            if not replies:
                return None
            rates.append(sum(len(reply.token_ids) for reply in replies) / sum(reply.seconds for reply in replies))
        return rates[1] / rates[0]

    def num_of(self, part: PartName) -> int:
        return sum(_part_of(reply) == part for reply in self.contenders[0].replies)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRun:
    """`engine` holds for all but policy and budget. The prefix cache must be off: engines share the KV pool. In each of
    the `rounds` all engines start with nothing learned.
    """

    parts: ReplicaParts
    engine: EngineConfig
    contenders: Sequence[Contender]
    chat: bool
    max_tokens: int
    concurrency: int
    rounds: int = 1
    clock: Callable[[], float] = time.perf_counter

    def measure(self, prompts: PromptFile, on_reply: Callable[[], object] = lambda: None) -> BenchmarkSpeed:
        if self.engine.prefix_cache:
            raise ValueError("prefix_cache must be off: the engines share the KV pool")
        speeds = tuple(ContenderSpeed() for _ in self.contenders)
        for number in range(self.rounds):
            self._run_round(number, prompts, speeds, on_reply)
        return BenchmarkSpeed(prompts.name, speeds)

    def _run_round(
        self, number: int, prompts: PromptFile, speeds: Sequence[ContenderSpeed], on_reply: Callable[[], object]
    ) -> None:
        engines = [self._engine(contender) for contender in self.contenders]
        limit = engines[0].max_model_len - self.max_tokens
        sessions = [
            Session.of_dialogue(dialogue, self.parts.tokenizer, chat=self.chat, limit=limit)
            for dialogue in prompts.dialogues
        ]
        for turn, group in enumerate(self._groups(sessions), start=number):
            order = list(zip(engines, speeds, strict=True))
            for engine, speed in order if turn % 2 == 0 else order[::-1]:
                self._answer(engine, group, speed, on_reply)
        for engine, speed in zip(engines, speeds, strict=True):
            # of the last round
            speed.stats = engine.stats()

    def _groups(self, sessions: Sequence[Session]) -> Iterator[Sequence[Session]]:
        # Two rounds of a batch, lest it run half empty for most of the time.
        size = self.concurrency if self.concurrency == 1 else 2 * self.concurrency
        for start in range(0, len(sessions), size):
            yield sessions[start : start + size]

    def _answer(
        self, engine: Engine, group: Sequence[Session], speed: ContenderSpeed, on_reply: Callable[[], object]
    ) -> None:
        def keep(reply: Reply) -> None:
            speed.replies.append(reply)
            on_reply()

        started_s = self.clock()
        hold(engine, group, greedy(self.max_tokens), concurrency=self.concurrency, on_reply=keep, clock=self.clock)
        speed.seconds += self.clock() - started_s

    def _engine(self, contender: Contender) -> Engine:
        config = self.engine.model_copy(update={"policy": contender.policy, "budget": contender.budget})
        return new_engine(self.parts, config, clock=self.clock)


def _part_of(reply: Reply) -> PartName:
    return "repetitive" if is_repetitive(reply.prompt.token_ids, reply.token_ids) else "natural"
