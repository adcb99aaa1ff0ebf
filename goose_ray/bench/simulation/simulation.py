"""The real aggregator and its tuning over a thousand simulated replicas under production traffic, through what goes
wrong: reports lost and doubled all the time, then replicas killed, the aggregator killed, traffic that changes.

Arrivals and lengths are a trace's, what steps commit is recorded, how long they take a cost model says. Requests go to
the less loaded of two replicas drawn at random; those of a killed replica begin anew on another one.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from goose.cost import CostModel, StepShape
from goose.tuning import TreeTuning, solve
from goose_ray.bench.simulation.aggregator import SimulatedAggregator
from goose_ray.bench.simulation.fleet import Fleet
from goose_ray.bench.simulation.records import (
    Event,
    Kind,
    Moment,
    Simulation,
    SimulationPlan,
    seconds_to_settled,
    tau_between,
)
from goose_ray.bench.simulation.scaling import FleetScaling
from goose_ray.bench.simulation.step_library import StepLibrary

__all__ = ["simulate"]

_TICK_S = 0.25
# Parts of the time after which replicas are killed, the aggregator is, and traffic changes.
_EVENTS = (("replicas killed", 0.3), ("aggregator killed", 0.55), ("traffic changed", 0.75))
# What "before" and "after" an event means, in seconds.
_AROUND_S = 10.0


def simulate(kinds: Sequence[Kind], plan: SimulationPlan, on_second: Callable[[], object] = lambda: None) -> Simulation:
    return _Run(kinds, plan).run(on_second)


class _Run:
    def __init__(self, kinds: Sequence[Kind], plan: SimulationPlan) -> None:
        self._plan, self._kinds = plan, kinds
        self._rng = np.random.default_rng(plan.seed)
        step_s = _step_seconds(plan)
        requests_s = [_seconds_a_request(kind, plan, step_s) for kind in kinds]
        # As many replicas for each kind as its trace, at its own pace beside the others', needs.
        shares = np.array([kind.trace.rate * each for kind, each in zip(kinds, requests_s, strict=True)])
        ends = np.round(np.cumsum(shares / shares.sum()) * plan.replicas).clip(1, plan.replicas).astype(int)
        self._fleet = Fleet(
            np.searchsorted(ends, np.arange(plan.replicas), side="right"),
            [kind.library for kind in kinds],
            [kind.name for kind in kinds],
            budget=plan.budget,
            max_running=plan.max_running,
            step_s=step_s,
            rng=self._rng,
        )
        counts = np.bincount(self._fleet.kinds, minlength=len(kinds))
        self._arrivals = [
            kind.trace.scaled(plan.load * count / each, plan.seconds, self._rng)
            for kind, count, each in zip(kinds, counts.tolist(), requests_s, strict=True)
        ]
        self._next = [0] * len(kinds)
        self._aggregator = SimulatedAggregator(plan.period_s)
        self._phases = self._rng.permutation(plan.replicas) / plan.replicas * plan.period_s
        self._ready_s = np.full(plan.replicas, np.inf)
        self._ahead = [Event(what, round(part * plan.seconds)) for what, part in _EVENTS]
        self._happened = [Event("start", 0.0)]
        self._timeline: list[Moment] = []
        self._noted = (0.0, 0, 0)
        self._lost = self._doubled = 0
        self._scaling: FleetScaling | None = None
        if plan.scaling is not None:
            self._scaling = FleetScaling(
                self._fleet, self._ready_s, plan.scaling, start_s=plan.start_s, max_running=plan.max_running
            )

    def run(self, on_second: Callable[[], object]) -> Simulation:
        plan, fleet = self._plan, self._fleet
        per_second = round(1 / _TICK_S)
        for tick in range(round(plan.seconds / _TICK_S)):
            now = tick * _TICK_S
            if self._ahead and now >= self._ahead[0].at_s:
                self._happen(self._ahead.pop(0), now)
            for replica in np.flatnonzero(self._ready_s <= now).tolist():
                self._ready_s[replica] = np.inf
                fleet.start(replica, now)
            self._arrive(now + _TICK_S)
            self._give_places()
            fleet.serve(now, _TICK_S)
            self._report(now + _TICK_S)
            if (tick + 1) % per_second == 0:
                if self._scaling is not None:
                    self._scaling.scale(now + _TICK_S)
                self._note(now + _TICK_S)
                on_second()
        return self._result()

    def _happen(self, event: Event, now: float) -> None:
        self._happened.append(event)
        fleet = self._fleet
        if event.what == "replicas killed":
            victims = np.concatenate([self._victims(kind) for kind in range(len(self._kinds))])
            fleet.is_live[victims] = False
            self._ready_s[victims] = now + self._plan.start_s
            orphans = np.isin(fleet.requests.replica, victims)
            event.restarted = int(orphans.sum())
            fleet.requests.restart(orphans, self._routed(fleet.kinds[fleet.requests.replica[orphans]]))
        elif event.what == "aggregator killed":
            self._aggregator.begin(now)
        elif len(self._kinds) > 1:
            first = np.flatnonzero(fleet.kinds == 0)
            for replica in first[fleet.is_live[first]].tolist():
                self._send(replica, now)
            fleet.switch_traffic(first, 1)

    def _victims(self, kind: int) -> NDArray[np.int64]:
        """Never all of a kind."""
        alive = self._rng.permutation(np.flatnonzero(self._fleet.is_live & (self._fleet.kinds == kind)))
        victims: NDArray[np.int64] = alive[: min(len(alive) - 1, round(self._plan.killed * len(alive)))]
        return victims

    def _arrive(self, until: float) -> None:
        for kind, trace in enumerate(self._arrivals):
            first, last = self._next[kind], int(np.searchsorted(trace.arrivals_s, until))
            self._next[kind] = last
            replicas = self._routed(np.full(last - first, kind))
            rows = slice(first, last)
            self._fleet.requests.add(
                replicas, trace.arrivals_s[rows], trace.prompt_tokens[rows], trace.output_tokens[rows]
            )

    def _routed(self, kinds: NDArray[np.int64]) -> NDArray[np.int64]:
        """A replica for a request of each of these kinds, by the loads at this moment."""
        chosen, loads = np.zeros(len(kinds), np.int64), self._fleet.loads()
        for kind in range(len(self._kinds)):
            of_kind = np.flatnonzero(kinds == kind)
            able = np.flatnonzero(self._fleet.is_live & ~self._fleet.is_leaving & (self._fleet.kinds == kind))
            two = able[self._rng.integers(len(able), size=(2, len(of_kind)))]
            chosen[of_kind] = np.where(loads[two[0]] <= loads[two[1]], two[0], two[1])
        return chosen

    def _give_places(self) -> None:
        """Who waits is at no replica yet, whatever was chosen: the first that has a place takes it."""
        fleet, most = self._fleet, self._plan.max_running
        requests, loads = fleet.requests, fleet.loads()
        if loads.max(initial=0) <= most:
            return
        waiting = np.flatnonzero(fleet.ranks() >= most)
        free = np.where(fleet.is_live & ~fleet.is_leaving, np.maximum(0, most - loads), 0)
        kinds = fleet.kinds[requests.replica[waiting]]
        for kind in range(len(self._kinds)):
            own = np.flatnonzero(fleet.kinds == kind)
            places = self._rng.permutation(np.repeat(own, free[own]))
            first = waiting[kinds == kind][: len(places)]
            requests.replica[first] = places[: len(first)]

    def _report(self, now: float) -> None:
        """Of the replicas whose turn came since the tick before."""
        period_s = self._plan.period_s
        turn = (now - self._phases) % period_s < _TICK_S
        for replica in np.flatnonzero(turn & self._fleet.is_live).tolist():
            self._send(replica, now)

    def _send(self, replica: int, now: float) -> None:
        packed = self._fleet.report(replica, now)
        if self._rng.random() < self._plan.lost:
            self._lost += 1
            return
        is_doubled = self._rng.random() < self._plan.lost
        self._doubled += is_doubled
        for _ in range(1 + is_doubled):
            self._deliver(replica, packed, now)

    def _deliver(self, replica: int, packed: bytes, now: float) -> None:
        tuning = self._aggregator.observe(packed, self._fleet.incarnations[replica].id, now)
        if tuning is not None:
            self._fleet.tune(replica, tuning)

    def _note(self, now: float) -> None:
        fleet, event = self._fleet, self._happened[-1]
        tokens, steps, arrived = fleet.tokens, fleet.sequence_steps, sum(self._next)
        before_tokens, before_steps, before_arrived = self._noted
        self._noted = (tokens, steps, arrived)
        live = np.flatnonzero(fleet.is_live).tolist()
        running = int(np.minimum(fleet.loads(), self._plan.max_running).sum())
        tuned = sum(fleet.tunings[replica].version > 0 for replica in live)
        self._timeline.append(
            Moment(
                t=now,
                live=len(live),
                arrived=arrived - before_arrived,
                running=running,
                waiting=len(fleet.requests) - running,
                tokens_per_s=tokens - before_tokens,
                tau=(tokens - before_tokens) / max(1, steps - before_steps),
                tuned=tuned / len(live),
            )
        )
        whole = not np.isfinite(self._ready_s).any()
        known = self._aggregator.known
        if event.seconds_to_known is None and whole and all(fleet.incarnations[one].id in known for one in live):
            event.seconds_to_known = now - event.at_s
        since = self._aggregator.first_version
        if event.seconds_to_tuned is None and whole and all(fleet.tunings[one].version >= since for one in live):
            event.seconds_to_tuned = now - event.at_s

    def _result(self) -> Simulation:
        plan, fleet, aggregator = self._plan, self._fleet, self._aggregator
        cpu_share = aggregator.cpu_s / plan.seconds
        mean_bytes = round(aggregator.num_bytes / max(1, aggregator.reports))
        reports = aggregator.reports
        for replica in np.flatnonzero(fleet.is_live).tolist():
            self._deliver(replica, fleet.report(replica, plan.seconds), plan.seconds)
        kept = {one.report.incarnation.id: one.report.acceptance for one in aggregator.memory.view(plan.seconds).live}
        own = {fleet.incarnations[one].id: fleet.tables[one] for one in np.flatnonzero(fleet.is_live).tolist()}
        ends = [*(event.at_s for event in self._happened[1:]), plan.seconds]
        for event, end in zip(self._happened, ends, strict=True):
            event.tau_before = tau_between(self._timeline, event.at_s - _AROUND_S, event.at_s)
            event.tau_after = tau_between(self._timeline, event.at_s, event.at_s + _AROUND_S)
            event.tau_settled = tau_between(self._timeline, end - _AROUND_S, end)
            event.seconds_to_settled = seconds_to_settled(self._timeline, event.at_s, end, event.tau_settled)
        waits_s = np.concatenate([*fleet.waits_s, np.zeros(1)])
        token_s = np.concatenate([*fleet.seconds_a_token, np.zeros(1)])
        best = {kind.name: solve([kind.library.counts()]) for kind in self._kinds}
        return Simulation(
            replicas=plan.replicas,
            seconds=plan.seconds,
            requests=sum(self._next),
            finished=fleet.finished,
            tokens=round(fleet.tokens),
            reports=reports,
            lost=self._lost,
            doubled=self._doubled,
            mean_report_bytes=mean_bytes,
            mean_live=float(np.mean([moment.live for moment in self._timeline])),
            aggregator_cpu_share=cpu_share,
            untuned={kind.name: _mean_tau(kind.library, TreeTuning()) for kind in self._kinds},
            tuned={kind.name: _mean_tau(kind.library, best[kind.name]) for kind in self._kinds},
            queue_wait_p50_s=float(np.quantile(waits_s, 0.5)),
            queue_wait_p95_s=float(np.quantile(waits_s, 0.95)),
            token_p50_s=float(np.quantile(token_s, 0.5)),
            token_p95_s=float(np.quantile(token_s, 0.95)),
            exact=all(kept.get(name) == table for name, table in own.items()),
            events=self._happened,
            timeline=self._timeline,
        )


def _step_seconds(plan: SimulationPlan) -> NDArray[np.float64]:
    """[rows + 1]: seconds of a step, by a cost model that has seen such a machine."""
    most = max(512, plan.max_running * plan.budget)
    model = CostModel(max_rows=most)
    for _ in range(8):
        for octave in range(most.bit_length()):
            rows = min(1 << octave, most)
            model.observe(StepShape(rows, 1, 0, 0), plan.step_s + plan.row_s * rows)
    return model.curve(StepShape(0, 1, 0, 0), most, context_per_row=0.0).astype(np.float64)


def _seconds_a_request(kind: Kind, plan: SimulationPlan, step_s: NDArray[np.float64]) -> float:
    """Of a replica with as many sequences as it may have, untuned."""
    rows = plan.max_running * plan.budget
    steps = float(kind.trace.output_tokens.mean()) / _mean_tau(kind.library, TreeTuning())
    prefill_s = float(kind.trace.prompt_tokens.mean()) * step_s[-1] / (len(step_s) - 1)
    return float(steps * step_s[rows] / plan.max_running + prefill_s)


def _mean_tau(library: StepLibrary, tuning: TreeTuning) -> float:
    return float(library.outcomes(tuning).committed.mean())
