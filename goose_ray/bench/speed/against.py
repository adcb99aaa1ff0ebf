"""This engine's tokens per second over those of transformers' own decoding, interleaved in one run.

Prompts are taken in groups that fill the batch; each group is answered by all, one after the other, in an order that
turns around from group to group, so that whatever else the machine does falls on all alike.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.engine.references import TokenIds
from goose_ray.bench.replies import Reply, answer_each, greedy
from goose_ray.bench.speed.opponents import Opponent
from goose_ray.bench.speed.speed_run import Contender
from goose_ray.config import EngineConfig

__all__ = ["AgainstRun", "Pace"]

# Prompts and the most tokens of a reply -> replies.
Answers = Callable[[Sequence[TokenIds], int], list[TokenIds]]

# The tokens of the reply that everyone writes before it counts.
_WARM_TOKENS = 4


@dataclass(slots=True)
class Pace:
    """What one of them did."""

    seconds: float = 0.0
    replies: list[TokenIds] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.replies)) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstRun:
    """`engine` holds for all contenders but for policy and budget; its prefix cache is off."""

    parts: ReplicaParts
    engine: EngineConfig
    opponent: Opponent
    contenders: Sequence[Contender]
    max_tokens: int
    concurrency: int
    clock: Callable[[], float] = time.perf_counter

    def measure(self, prompts: Sequence[TokenIds], on_group: Callable[[], object] = lambda: None) -> dict[str, Pace]:
        """By name, the opponent first, which is closed in the end."""
        with closing(self.opponent):
            return self._measure(prompts, on_group)

    def groups(self, prompts: Sequence[TokenIds]) -> list[Sequence[TokenIds]]:
        """Two rounds of a batch, lest it run half empty for most of the time."""
        size = self.concurrency if self.concurrency == 1 else 2 * self.concurrency
        return [prompts[start : start + size] for start in range(0, len(prompts), size)]

    def _measure(self, prompts: Sequence[TokenIds], on_group: Callable[[], object]) -> dict[str, Pace]:
        answerers: dict[str, Answers] = {self.opponent.name: self.opponent.answers}
        answerers |= {contender.name: self._engine(contender) for contender in self.contenders}
        for answer in answerers.values():
            answer(prompts[:1], _WARM_TOKENS)
        paces = {name: Pace() for name in answerers}
        for number, group in enumerate(self.groups(prompts)):
            order = list(answerers.items())
            for name, answer in order if number % 2 == 0 else order[::-1]:
                started_s = self.clock()
                replies = answer(group, self.max_tokens)
                paces[name].seconds += self.clock() - started_s
                paces[name].replies += replies
            on_group()
        return paces

    def _engine(self, contender: Contender) -> Answers:
        config = self.engine.model_copy(
            update={
                "policy": contender.policy,
                "budget": contender.budget,
                "max_running_requests": self.concurrency,
                "prefix_cache": False,
            }
        )
        engine = new_engine(self.parts, config, clock=self.clock)

        def answers(prompts: Sequence[TokenIds], max_tokens: int) -> list[TokenIds]:
            found: dict[int, TokenIds] = {}

            def keep(index: int, reply: Reply) -> None:
                found[index] = reply.token_ids

            sampling = greedy(max_tokens)
            answer_each(engine, prompts, sampling, concurrency=self.concurrency, on_reply=keep, clock=self.clock)
            return [found[index] for index in range(len(prompts))]

        return answers
