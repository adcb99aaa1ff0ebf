"""What a simulation of the cluster is told, and what comes of it. Plain data, and taus read off a time line."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from goose_ray.bench.simulation.step_library import StepLibrary
from goose_ray.bench.simulation.traces import Trace

__all__ = [
    "Event",
    "Kind",
    "Moment",
    "ScalingPlan",
    "Simulation",
    "SimulationPlan",
    "seconds_to_settled",
    "tau_between",
]

_SETTLED, _SETTLED_OVER_S = 0.01, 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Traffic of one kind, which a part of the replicas is for."""

    name: str
    trace: Trace
    library: StepLibrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """At first `initial`, a part of all replicas; at least a tenth of that."""

    initial: float
    upscale_delay_s: float
    downscale_delay_s: float
    # requests a replica that Serve's own policy aims at; None: `CapacityPolicy` decides
    target_ongoing: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """`load` is the part of what the fleet can do that is asked of it; a step takes `step_s` and `row_s` a row."""

    replicas: int
    seconds: float
    period_s: float
    load: float
    budget: int
    step_s: float
    row_s: float
    # the part of the reports that is lost, and that comes twice; of the replicas that is killed
    lost: float
    killed: float
    # seconds until another replica stands in a killed one's place
    start_s: float
    max_running: int = 32
    # None: all replicas are there all the time
    scaling: ScalingPlan | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """Of the seconds since the moment before; `waiting` and `live` as they are. Taus: committed tokens a step."""

    t: float
    live: int
    arrived: int
    running: int
    waiting: int
    tokens_per_s: float
    tau: float
    # part of the live replicas that have a tuning
    tuned: float


@dataclass(slots=True)
class Event:
    """Taus of the fleet in the ten seconds before, in those after, and in the last ones before the next event.

    `seconds_to_...`: until the aggregator knows all living replicas, until each has a tuning of that aggregator, and
    until tau stays within 1 % of what it settles at; None: never.
    """

    what: str
    at_s: float
    tau_before: float = 0.0
    tau_after: float = 0.0
    tau_settled: float = 0.0
    # requests that had to begin anew
    restarted: int = 0
    seconds_to_known: float | None = None
    seconds_to_tuned: float | None = None
    seconds_to_settled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What came of it. `exact`: at the end the aggregator's counters of every living replica are its own."""

    replicas: int
    seconds: float
    requests: int
    finished: int
    tokens: int
    reports: int
    lost: int
    doubled: int
    mean_report_bytes: int
    # mean of the time
    mean_live: float
    # CPU seconds of the aggregator a second of one core
    aggregator_cpu_share: float
    # tau by kind of traffic without tuning, and with what all recorded steps together ask for
    untuned: dict[str, float]
    tuned: dict[str, float]
    queue_wait_p50_s: float
    queue_wait_p95_s: float
    # seconds from arrival to the last token, a token of the answer
    token_p50_s: float
    token_p95_s: float
    exact: bool
    events: list[Event] = field(default_factory=list)
    timeline: list[Moment] = field(default_factory=list)


def tau_between(timeline: Sequence[Moment], start_s: float, end_s: float) -> float:
    """Committed tokens / steps; 0 if there were none."""
    shown = [moment for moment in timeline if start_s < moment.t <= end_s and moment.tokens_per_s]
    steps = sum(moment.tokens_per_s / moment.tau for moment in shown)
    return sum(moment.tokens_per_s for moment in shown) / steps if steps else 0.0


def seconds_to_settled(timeline: Sequence[Moment], start_s: float, end_s: float, settled: float) -> float | None:
    """Until the tau of five seconds stays within 1 % of `settled`; None: not within that time."""
    moments = np.arange(start_s + _SETTLED_OVER_S, end_s + 0.5)
    taus = np.array([tau_between(timeline, moment - _SETTLED_OVER_S, moment) for moment in moments.tolist()])
    far = np.flatnonzero(np.abs(taus - settled) > _SETTLED * settled)
    if not len(far):
        return 0.0
    return None if far[-1] + 1 == len(moments) else float(moments[far[-1] + 1] - start_s)
