"""One policy at one budget over all benchmarks of recordings, the same way for every policy.

Each benchmark starts with a speculator that has learned nothing, or with one that has served other recordings or,
*warm*, some of the other benchmarks, the same for every policy. Within a benchmark it keeps what it learns. Knows
nothing of tables and plots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from goose.policies.registry import POLICIES, PolicyBuilder
from goose.replay import Recording, ReplayResult, StepObserver, replay
from goose.speculator import Speculator
from goose.tree import IntArray, TokenTree
from goose_ray.bench.recordings import Benchmark

__all__ = ["PolicyRun", "ReplayPlan", "StepLog"]


class StepLog(Protocol):
    """Told of every counted step."""

    def observe(self, benchmark: Benchmark, tree: TokenTree, accepted_nodes: IntArray) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRun:
    """What a policy came to."""

    policy: str
    # what the policy was told to spend; what it did spend is `nodes_per_step`
    budget: int
    # benchmark -> one result a reply, in the benchmark's order
    results: Mapping[str, Sequence[ReplayResult]]

    def nodes_per_step(self, benchmarks: Sequence[str]) -> float:
        """Nodes verified per step of these benchmarks, anchors included."""
        results = [result for name in benchmarks for result in self.results[name]]
        return sum(result.nodes for result in results) / sum(result.steps for result in results)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayPlan:
    """What is replayed, and after what: `before`, then `warm` replies of other benchmarks go before each."""

    benchmarks: tuple[Benchmark, ...]
    before: tuple[Recording, ...] = ()
    warm: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    # of policies that can do without; False: as where many requests share a step
    harvest_prompts: bool = True
    builders: Mapping[str, PolicyBuilder] = field(default_factory=lambda: POLICIES)

    @property
    def compared(self) -> tuple[Benchmark, ...]:
        """The benchmarks that averages are of: sessions stand apart, unless there is nothing else."""
        return tuple(one for one in self.benchmarks if not one.is_session) or self.benchmarks

    @property
    def sessions(self) -> tuple[Benchmark, ...]:
        """The benchmarks that stand apart."""
        return tuple(one for one in self.benchmarks if one not in self.compared)

    def run(self, policy: str, budget: int, log: StepLog | None = None, *, with_sessions: bool = True) -> PolicyRun:
        benchmarks = self.benchmarks if with_sessions else self.compared
        return PolicyRun(policy, budget, {one.name: self._replay(one, policy, budget, log) for one in benchmarks})

    def _replay(self, benchmark: Benchmark, policy: str, budget: int, log: StepLog | None) -> list[ReplayResult]:
        speculator = Speculator(policy=policy, budget=budget, builders=self.builders)
        for recording in (*self.before, *self.warm_up(benchmark)):
            self._reply(recording, speculator)

        def observe(tree: TokenTree, accepted_nodes: IntArray) -> None:
            if log is not None:
                log.observe(benchmark, tree, accepted_nodes)

        return [self._reply(reply.recording, speculator, observe) for reply in benchmark.replies]

    def _reply(self, recording: Recording, speculator: Speculator, on_step: StepObserver | None = None) -> ReplayResult:
        return replay(
            recording,
            speculator,
            stop_token_ids=self.stop_token_ids,
            harvest_prompt=self.harvest_prompts,
            on_step=on_step,
        )

    def warm_up(self, benchmark: Benchmark) -> list[Recording]:
        """The replies that go before this benchmark: drawn from the others by the seed."""
        others = [reply.recording for one in self.benchmarks if one is not benchmark for reply in one.replies]
        place = self.benchmarks.index(benchmark)
        drawn = np.random.default_rng([self.seed, place]).permutation(len(others))[: self.warm]
        return [others[index] for index in drawn.tolist()]
