"""What drafting costs the host: propose and observe of a warm speculator, batch after batch, the forward left out.

Each sequence has a prompt and a scripted reply of `traffic.py`; trees are walked along it, and all their
rows, accepted and rejected, are harvested as a step of the engine delivers them. What stands between `propose` and
`observe` is the target's work and not counted.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from goose.anisotropic import builders, drafter
from goose.calibration import AcceptanceTable
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.speculator import Speculator
from goose.tree import IntArray, TokenTree, TreeBatch
from goose_ray.bench.host.traffic import MarkovTarget, Texts

__all__ = ["DraftCost", "DraftRun", "Share"]

# Finished requests that have warmed the tables, and tokens of their prompts and replies.
_NUM_PAST, _PAST_PROMPT, _PAST_REPLY = 64, 512, 256
# Rows of a prompt harvested at a time.
_CHUNK = 2048
# Steps before those that are measured: tables are warm by then, and the size of trees has come to rest.
_WARM_STEPS = 96
# Tokens that a step of such text commits at most, on average over many.
_MAX_TAU = 6
_SEED = 7
# Where the time goes: functions that do a whole batch. The first four are those of `anisotropic`.
_STAGES: dict[str, tuple[Any, str]] = {
    "build": (builders, "build_trees"),
    "learn": (drafter, "learn_paths"),
    "commit": (drafter, "commit_tokens"),
    "rows": (drafter, "add_rows"),
    "count": (AcceptanceTable, "observe_batch"),
}


@dataclass(frozen=True, slots=True)
class Share:
    """Microseconds per sequence and step: the median over steps."""

    wall_us: float
    # of all threads together
    cpu_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """One batch of sequences of one length."""

    context: int
    steps: int
    # nodes per tree, anchor included, and committed tokens per step
    nodes_per_tree: float
    tau: float
    propose: Share
    observe: Share
    total: Share
    # the longest stages alone, measured in as many further steps; the rest is glue
    stages_cpu_us: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRun:
    """`budget` is nodes per sequence and step, on average for policies that let trees differ."""

    policy: str
    budget: int
    batch_size: int
    vocab_size: int
    steps: int
    num_threads: int = 1

    def measure(self, context: int) -> DraftCost:
        """`context`: tokens of prompt and reply when measuring begins."""
        script = _Script(self, context)
        for _ in range(_WARM_STEPS):
            script.step()
        taken = [script.step() for _ in range(self.steps)]
        with _stage_clocks() as spent:
            by_stage = [_taken(spent, script.step) for _ in range(self.steps)]
        times = np.asarray([step.seconds for step in taken]) * 1e6 / self.batch_size

        def share(clocks: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Share:
            wall, cpu = np.median(clocks, axis=0).tolist()
            return Share(wall_us=wall, cpu_us=cpu)

        return DraftCost(
            context=context,
            steps=self.steps,
            nodes_per_tree=float(np.mean([step.num_nodes for step in taken])) / self.batch_size,
            tau=float(np.mean([step.num_committed for step in taken])) / self.batch_size,
            propose=share(times[:, 0]),
            observe=share(times[:, 1]),
            total=share(times.sum(axis=1)),
            stages_cpu_us={
                name: float(np.median([step[name] for step in by_stage])) * 1e6 / self.batch_size for name in _STAGES
            },
        )


@dataclass(frozen=True, slots=True)
class _Step:
    # propose, observe: seconds by the wall clock and of the processor
    seconds: tuple[tuple[float, float], tuple[float, float]]
    num_nodes: int
    num_committed: int


class _Script:
    """A batch of live requests, each with a reply long enough for all steps."""

    def __init__(self, run: DraftRun, context: int) -> None:
        rng = np.random.default_rng(_SEED)
        self._target = MarkovTarget(run.vocab_size, _SEED)
        self._speculator = Speculator(policy=run.policy, budget=run.budget, num_threads=run.num_threads)
        past = self._target.write(_NUM_PAST, _PAST_PROMPT + _PAST_REPLY, rng)
        for number in range(_NUM_PAST):
            self._play_past(past, number)
        length = context + 2 * _MAX_TAU * (run.steps + _WARM_STEPS)
        self._texts = self._target.write(run.batch_size, length, rng)
        self._names = [f"live-{number}" for number in range(run.batch_size)]
        self._ends = np.full(run.batch_size, max(context - 4 * _WARM_STEPS, 2), dtype=np.int64)
        for number, name in enumerate(self._names):
            self._start(name, self._texts, number, int(self._ends[number]))
        self._max_nodes = run.batch_size * 4 * run.budget

    def step(self) -> _Step:
        depths = (self._texts.token_ids.shape[1] - 1 - self._ends).tolist()
        before = _clocks()
        trees = self._speculator.propose(self._names, max_draft_depths=depths, max_nodes=self._max_nodes)
        proposed = _clocks()
        outcomes, harvest = self._verified(trees)
        verified = _clocks()
        self._speculator.observe(outcomes, harvest)
        observed = _clocks()
        committed = [len(outcome.committed_ids) for outcome in outcomes]
        self._ends += committed
        seconds = (
            (proposed[0] - before[0], proposed[1] - before[1]),
            (observed[0] - verified[0], observed[1] - verified[1]),
        )
        return _Step(seconds, trees.num_nodes, sum(committed))

    def _verified(self, trees: TreeBatch) -> tuple[list[TreeOutcome], Harvest]:
        """What the engine would tell: rows in the order of the batch, those on the verified path with their place."""
        outcomes: list[TreeOutcome] = []
        parts: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
        rows = []
        for number, (name, tree) in enumerate(zip(self._names, trees, strict=True)):
            end = int(self._ends[number])
            reply = self._texts.token_ids[number, end:]
            accepted = _accepted(tree, reply)
            outcomes.append(TreeOutcome(name, tree, accepted, reply[: len(accepted) + 1], int(reply[len(accepted)])))
            previous = tree.token_ids[tree.parents]
            previous[0] = self._texts.token_ids[number, end - 2]
            positions = np.full(tree.num_nodes, -1, dtype=np.int64)
            path = np.concatenate(([0], accepted))
            positions[path] = end - 1 + np.arange(len(path))
            ids, probs = self._target.rows(previous, tree.token_ids)
            ids[path], probs[path] = (
                self._texts.top_ids[number, positions[path]],
                self._texts.top_probs[number, positions[path]],
            )
            parts.append((previous, tree.token_ids, np.full(tree.num_nodes, number), positions))
            rows.append((ids, probs))
        previous_ids, token_ids, requests, positions = (np.concatenate(part) for part in zip(*parts, strict=True))
        top_ids, top_probs = (np.concatenate(part) for part in zip(*rows, strict=True))
        origin = HarvestOrigin(tuple(self._names), requests, positions)
        return outcomes, Harvest(previous_ids, token_ids, top_ids, top_probs, origin)

    def _play_past(self, texts: Texts, number: int) -> None:
        name = f"past-{number}"
        self._start(name, texts, number, _PAST_PROMPT)
        reply = texts.token_ids[number, _PAST_PROMPT:]
        tree = TokenTree.chain(int(texts.token_ids[number, _PAST_PROMPT - 1]), reply[:-1].tolist(), source=1)
        outcome = TreeOutcome(name, tree, np.arange(1, len(reply)), reply, int(reply[-1]))
        last = _PAST_PROMPT + _PAST_REPLY - 1
        self._speculator.observe([outcome], _rows(name, texts, number, _PAST_PROMPT - 1, last))
        self._speculator.stop_request(name)

    def _start(self, name: str, texts: Texts, number: int, num_prompt: int) -> None:
        self._speculator.start_request(name, texts.token_ids[number, :num_prompt], stop_token_ids=[0])
        for first, last in _chunks(num_prompt - 1):
            self._speculator.observe([], _rows(name, texts, number, first, last))


@contextmanager
def _stage_clocks() -> Iterator[dict[str, float]]:
    """Seconds of the processor that each stage has taken so far, on all threads together."""
    spent = dict.fromkeys(_STAGES, 0.0)
    plain = {name: getattr(*place) for name, place in _STAGES.items()}

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            before = time.thread_time()
            try:
                return function(*args)
            finally:
                spent[name] += time.thread_time() - before

        return run

    try:
        for name, place in _STAGES.items():
            setattr(*place, clocked(name, plain[name]))
        yield spent
    finally:
        for name, place in _STAGES.items():
            setattr(*place, plain[name])


def _taken(spent: dict[str, float], step: Callable[[], object]) -> dict[str, float]:
    before = dict(spent)
    step()
    return {name: spent[name] - before[name] for name in spent}


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _accepted(tree: TokenTree, reply: IntArray) -> IntArray:
    """The nodes along the reply."""
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True))
    }
    path: list[int] = []
    for token in reply.tolist():
        node = children.get((path[-1] if path else 0, token))
        if node is None:
            break
        path.append(node)
    return np.asarray(path, dtype=np.int64)


def _chunks(num_rows: int) -> Iterator[tuple[int, int]]:
    for first in range(0, num_rows, _CHUNK):
        yield first, min(first + _CHUNK, num_rows)


def _rows(name: str, texts: Texts, number: int, first: int, last: int) -> Harvest:
    """The target's rows at positions first .. last - 1 of one text."""
    positions = np.arange(first, last)
    tokens = texts.token_ids[number]
    return Harvest(
        previous_ids=np.where(positions > 0, tokens[positions - 1], -1),
        token_ids=tokens[positions],
        top_ids=texts.top_ids[number, first:last],
        top_probs=texts.top_probs[number, first:last],
        origin=HarvestOrigin((name,), np.zeros_like(positions), positions),
    )
