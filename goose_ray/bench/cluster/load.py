"""What the aggregator costs: its real memory under the reports of a thousand simulated replicas.

Every report is packed as a replica sends it, unpacked as the actor receives it, and answered. Only that is timed, in
CPU time; Ray's own part of a call is not in it. Counts are drawn, falling with depth and rank as those of replicas do.
"""

import pickle
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from goose.calibration import DEPTH_EDGES, RANK_EDGES, AcceptanceTable
from goose.tuning import TreeTuning
from goose.tuning_counts import (
    ACCEPTED,
    ATTEMPTED,
    DEPTHS,
    GROUPS,
    NUM_SUMS,
    PREDICTED,
    VR,
    VZ,
    VZR,
    VZZ,
    TuningCounts,
    V,
)
from goose_ray.engine.request import SourceStats
from goose_ray.engine.stats import E2E_BOUNDS, INTER_TOKEN_BOUNDS, TTFT_BOUNDS, EngineStats, Histogram
from goose_ray.telemetry.cluster_memory import ClusterMemory
from goose_ray.telemetry.report import Incarnation, ReplicaReport

__all__ = ["AggregatorCost", "measure_aggregator"]

# Nodes of a source that a replica reaches in a second.
_NODES_PER_SECOND = 400.0
# Counters as after an hour.
_UPTIME_S = 3600.0
# Log-odds by which acceptance changes: as when a model is replaced. With a half-life of minutes a smaller change counts
# for little in its first seconds, and trees follow when it counts.
_CHANGE = 10.0
_MOST_PERIODS = 50
_WORKLOADS = ("code", "chat", "")


@dataclass(frozen=True, slots=True)
class AggregatorCost:
    """Of `replicas` that report every `period_s`. Bytes are those of a packed report."""

    replicas: int
    period_s: float
    # CPU seconds a second of one core; growth of the process' memory
    cpu_share: float
    memory_mb: float
    mean_report_bytes: int
    max_report_bytes: int
    # mean bytes of an answer to an unchanged table, and to a changed one
    unchanged_answer_bytes: int
    changed_answer_bytes: int
    # rounds of reports after a change in the tenth of the replicas that have traffic until all have another tuning
    periods_to_all: int


@dataclass(slots=True)
class _Replica:
    incarnation: Incarnation
    workload: str
    rng: np.random.Generator
    tuning: TreeTuning
    acceptance: AcceptanceTable
    counts: TuningCounts
    is_idle: bool = False
    sequence: int = 0
    uptime_s: float = _UPTIME_S

    def report(self, period_s: float, shift: float) -> bytes:
        """The next one: what another period adds, in which nodes were accepted as if by `shift` more log-odds."""
        self.sequence += 1
        self.uptime_s += period_s
        if not self.is_idle:
            self.acceptance = self.acceptance.add(_acceptance(self.rng, period_s))
            self.counts += _counts(period_s, shift)
        return pickle.dumps(
            ReplicaReport(
                incarnation=self.incarnation,
                sequence=self.sequence,
                model="model",
                max_model_len=8192,
                healthy=True,
                acceptance=self.acceptance,
                stats=_stats(self.rng, self.uptime_s),
                workload=self.workload,
                uptime_s=self.uptime_s,
                tuning_counts=self.counts,
                tuning=self.tuning,
            ),
            pickle.HIGHEST_PROTOCOL,
        )


def measure_aggregator(
    replicas: int, period_s: float, periods: int, *, seed: int = 0, on_period: Callable[[], object] = lambda: None
) -> AggregatorCost:
    """`periods` rounds of reports, then a second fleet, of which a tenth has traffic, in which acceptance changes."""
    before_kb = _peak_kb()
    fleet = [_new_replica(seed, number) for number in range(replicas)]
    fleet_kb = _peak_kb() - before_kb
    memory = ClusterMemory(live_for_s=3 * period_s, half_life_s=300.0, now=0.0, started_at=0.0)
    seconds: list[float] = []
    sizes, answers = [], []
    for number in range(periods + 1):
        spent, packed, answered = _round(fleet, memory, (3 + number) * period_s, period_s)
        # The first round hears each replica's whole life, and tells each its first tuning.
        if number:
            seconds.append(spent)
            answers += answered
        sizes += packed
        on_period()
    # What the simulated replicas hold of themselves is about what the aggregator knows of them.
    memory_kb = max(0, _peak_kb() - before_kb - fleet_kb)
    periods_to_all, changed_bytes = _spread(replicas, period_s, seed)
    return AggregatorCost(
        replicas=replicas,
        period_s=period_s,
        cpu_share=float(np.median(seconds)) / period_s,
        memory_mb=memory_kb / 1024,
        mean_report_bytes=round(float(np.mean(sizes))),
        max_report_bytes=max(sizes),
        unchanged_answer_bytes=min(answers),
        changed_answer_bytes=changed_bytes,
        periods_to_all=periods_to_all,
    )


def _spread(replicas: int, period_s: float, seed: int) -> tuple[int, int]:
    """Rounds after a change until every replica has another tuning, and the bytes of an answer that changes one."""
    fleet = [_new_replica(seed, number, is_idle=number % 10 > 0) for number in range(replicas)]
    memory = ClusterMemory(live_for_s=period_s, half_life_s=300.0, now=0.0, started_at=0.0)
    for number in (1, 2):
        _round(fleet, memory, number * period_s, period_s)
    versions = [replica.tuning.version for replica in fleet]
    largest = 0
    for number in range(1, _MOST_PERIODS + 1):
        _, _, answers = _round(fleet, memory, (2 + number) * period_s, period_s, shift=_CHANGE)
        largest = max(largest, *answers)
        if all(replica.tuning.version > old for replica, old in zip(fleet, versions, strict=True)):
            break
    return number, largest


def _round(
    fleet: list[_Replica], memory: ClusterMemory, now: float, period_s: float, shift: float = 0.0
) -> tuple[float, list[int], list[int]]:
    """One report of each: CPU seconds of the aggregator, bytes of the reports and of the answers."""
    reports = [replica.report(period_s, shift) for replica in fleet]
    answers = []
    started_s = time.process_time()
    for number, packed in enumerate(reports):
        answer = memory.observe(pickle.loads(packed), now + period_s * number / len(fleet))
        answers.append(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    seconds = time.process_time() - started_s
    for replica, answer_bytes in zip(fleet, answers, strict=True):
        replica.tuning = pickle.loads(answer_bytes) or replica.tuning
    return seconds, [len(packed) for packed in reports], [len(answer_bytes) for answer_bytes in answers]


def _new_replica(seed: int, number: int, *, is_idle: bool = False) -> _Replica:
    rng = np.random.default_rng([seed, number])
    name = f"{number:06d}-replica"
    return _Replica(
        incarnation=Incarnation(name, 1.7e9 + number, rng.bytes(16).hex(), f"host-{number // 8}", number),
        workload=_WORKLOADS[number % len(_WORKLOADS)],
        rng=rng,
        tuning=TreeTuning(),
        acceptance=_acceptance(rng, 0.0 if is_idle else _UPTIME_S),
        counts=_counts(0.0 if is_idle else _UPTIME_S, 0.0),
        is_idle=is_idle,
    )


def _acceptance(rng: np.random.Generator, seconds: float) -> AcceptanceTable:
    table = AcceptanceTable(("context", "transitions", "pool"))
    snapshot = table.snapshot()
    depth, rank = np.arange(len(DEPTH_EDGES)), np.arange(len(RANK_EDGES))
    for name, decay in (("context", 0.3), ("transitions", 1.2), ("pool", 0.5)):
        wanted = _NODES_PER_SECOND * seconds * np.exp(-decay * depth)[:, None] * np.exp(-1.1 * rank)[None, :]
        attempted = rng.poisson(wanted)
        snapshot["sources"][name] = [attempted.tolist(), rng.binomial(attempted, 0.4).tolist()]
    place = np.arange(len(table.accepted_per_position()))
    tried = rng.poisson(30 * seconds * np.exp(-0.25 * place))
    snapshot["positions"] = [tried.tolist(), rng.binomial(tried, 0.6).tolist()]
    return AcceptanceTable.from_snapshot(snapshot)


def _counts(seconds: float, shift: float) -> TuningCounts:
    sums = np.zeros((len(GROUPS), len(DEPTHS), NUM_SUMS))
    sums[..., ATTEMPTED] = _NODES_PER_SECOND / 4 * seconds * np.exp(-0.7 * np.arange(len(DEPTHS)))
    nodes = sums[..., ATTEMPTED]
    sums[..., ACCEPTED] = sums[..., PREDICTED] = 0.4 * nodes
    sums[..., V], sums[..., VZ], sums[..., VZZ] = 0.2 * nodes, -0.08 * nodes, 0.3 * nodes
    sums[..., VR], sums[..., VZR] = 0.2 * shift * nodes, -0.08 * shift * nodes
    return TuningCounts(sums, 30.0 / 4 * seconds)


def _stats(rng: np.random.Generator, seconds: float) -> EngineStats:
    tokens, requests = int(200 * seconds), int(seconds)

    def histogram(bounds: tuple[float, ...], total: int) -> Histogram:
        counts = rng.multinomial(total, rng.dirichlet(np.ones(len(bounds) + 1)))
        return Histogram(bounds, tuple(counts.tolist()), 0.1 * total)

    return EngineStats(
        num_requests_running=int(rng.integers(32)),
        kv_slots_used=int(rng.integers(30000)),
        kv_slots_total=32768,
        generation_tokens=tokens,
        prompt_tokens=3 * tokens,
        num_drafts=tokens // 3,
        num_draft_tokens=10 * tokens,
        num_accepted_tokens=tokens // 2,
        accepted_per_position=tuple((tokens * np.exp(-0.25 * np.arange(40))).astype(int).tolist()),
        by_source={name: SourceStats(tokens, tokens // 2) for name in ("context", "transitions", "pool")},
        num_steps=tokens // 6,
        num_rows=12 * tokens,
        forward_seconds=0.8 * seconds,
        step_seconds=0.9 * seconds,
        predicted_step_seconds=0.9 * seconds,
        step_error_seconds=0.05 * seconds,
        queue_seconds=histogram(TTFT_BOUNDS, requests),
        ttft_seconds=histogram(TTFT_BOUNDS, requests),
        inter_token_seconds=histogram(INTER_TOKEN_BOUNDS, tokens),
        e2e_seconds=histogram(E2E_BOUNDS, requests),
        finished_by_reason={"stop": requests // 2, "length": requests // 2},
    )


def _peak_kb() -> int:
    """Most memory that this process has had at any time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
