"""Several policies on the same recordings at equal verified nodes: the runs, and the figures that come of them.

Knows neither tables nor plots.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from goose.errors import UnknownNameError
from goose.replay import ReplayResult
from goose_ray.bench.recordings import Benchmark, RecordedReply
from goose_ray.bench.replay.bootstrap import Draws, Interval, macro_tau_of, ratio_of, tau_of
from goose_ray.bench.replay.node_matching import NodeMatch, match_budget
from goose_ray.bench.replay.policy_run import PolicyRun, ReplayPlan
from goose_ray.bench.replay.step_statistics import StepStatistics
from goose_ray.errors import ConfigError

__all__ = ["PARTS", "Comparison", "PartFigures", "PolicyFigures", "SessionFigures", "Study", "study"]

Results = Mapping[str, Sequence[ReplayResult]]

PARTS: Mapping[str, Callable[[RecordedReply], bool]] = {
    "all": lambda reply: True,
    "natural": lambda reply: not reply.repetitive,
    "repetitive": lambda reply: reply.repetitive,
}


@dataclass(frozen=True, slots=True, eq=False)
class PartFigures:
    """Some replies of the benchmarks that have such."""

    num_replies: int
    # nodes verified per step, anchors included
    nodes: float
    # the mean over benchmarks, and each benchmark's tau
    macro: Interval
    benchmarks: Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """A benchmark of conversations."""

    num_replies: int
    nodes: float
    tau: Interval


@dataclass(frozen=True, slots=True, eq=False)
class PolicyFigures:
    """One policy where it verifies the wanted number of nodes, or as near to it as it comes."""

    policy: str
    match: NodeMatch
    # all, natural and repetitive, as far as there are such replies
    parts: Mapping[str, PartFigures]
    sessions: Mapping[str, SessionFigures]
    statistics: StepStatistics


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Tau of the study's subject over that of another policy at the same wanted nodes."""

    policy: str
    wanted: float
    # part -> ratio of macro taus, of paired replies
    parts: Mapping[str, Interval]
    # benchmark -> ratio, of all replies
    benchmarks: Mapping[str, Interval]

    @property
    def worst(self) -> tuple[str, float]:
        """The benchmark with the least ratio."""
        name = min(self.benchmarks, key=lambda benchmark: self.benchmarks[benchmark].value)
        return name, self.benchmarks[name].value


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """`figures` and `comparisons` in the order in which policies and nodes were asked for."""

    plan: ReplayPlan
    # the policy that the others are compared with
    subject: str
    figures: Sequence[PolicyFigures]
    comparisons: Sequence[Comparison]

    @property
    def wanted(self) -> list[float]:
        return list(dict.fromkeys(one.match.wanted for one in self.figures))

    @property
    def policies(self) -> list[str]:
        return list(dict.fromkeys(one.policy for one in self.figures))

    def at(self, wanted: float) -> list[PolicyFigures]:
        return [one for one in self.figures if one.match.wanted == wanted]


def study(
    plan: ReplayPlan,
    policies: Sequence[str],
    wanted_nodes: Sequence[float],
    *,
    subject: str | None = None,
    on_run: Callable[[str], object] = lambda what: None,
) -> Study:
    """`subject` is by default the first policy. `on_run` is told the policy and budget of every run, when it is over.

    Raises ConfigError if a policy is not registered or `subject` is none of them.
    """
    chosen = policies[0] if subject is None else subject
    if chosen not in policies:
        raise ConfigError(f"subject must be one of the policies {', '.join(policies)}, not {chosen!r}")
    figures: list[PolicyFigures] = []
    runs: dict[tuple[str, float], PolicyRun] = {}
    try:
        for policy in policies:
            for match, run, statistics in _matched(plan, policy, wanted_nodes, on_run):
                runs[policy, match.wanted] = run
                figures.append(_figures(plan, match, run, statistics))
    except UnknownNameError as error:
        raise ConfigError(f"policy: {error}") from error
    comparisons = [
        _comparison(plan, runs[chosen, wanted], runs[policy, wanted], wanted)
        for wanted in wanted_nodes
        for policy in policies
        if policy != chosen
    ]
    return Study(plan, chosen, figures, comparisons)


def _matched(
    plan: ReplayPlan, policy: str, wanted_nodes: Sequence[float], on_run: Callable[[str], object]
) -> Iterator[tuple[NodeMatch, PolicyRun, StepStatistics]]:
    names = [benchmark.name for benchmark in plan.compared]
    nodes: dict[int, float] = {}

    def nodes_at(budget: int) -> float:
        if budget not in nodes:
            nodes[budget] = plan.run(policy, budget, with_sessions=False).nodes_per_step(names)
            on_run(f"{policy} {budget}")
        return nodes[budget]

    for wanted in wanted_nodes:
        match = match_budget(nodes_at, wanted)
        statistics = StepStatistics(plan.seed)
        run = plan.run(policy, match.budget, statistics)
        on_run(f"{policy} {match.budget}")
        yield match, run, statistics


def _figures(plan: ReplayPlan, match: NodeMatch, run: PolicyRun, statistics: StepStatistics) -> PolicyFigures:
    parts = {name: part for name in PARTS if (part := _part_figures(plan, run, name)) is not None}
    sessions = {benchmark.name: _session_figures(plan, benchmark, run) for benchmark in plan.sessions}
    return PolicyFigures(run.policy, match, parts, sessions, statistics)


def _part_figures(plan: ReplayPlan, run: PolicyRun, part: str) -> PartFigures | None:
    results = _part(plan.compared, run.results, part)
    if not results:
        return None
    draws = _draws(plan, results)
    flat = [result for replies in results.values() for result in replies]
    return PartFigures(
        num_replies=len(flat),
        nodes=sum(result.nodes for result in flat) / sum(result.steps for result in flat),
        macro=macro_tau_of(results, draws),
        benchmarks={name: Interval.of(tau_of(own), draws.taus(name, own)) for name, own in results.items()},
    )


def _session_figures(plan: ReplayPlan, benchmark: Benchmark, run: PolicyRun) -> SessionFigures:
    results = run.results[benchmark.name]
    draws = _draws(plan, {benchmark.name: results})
    return SessionFigures(
        num_replies=len(results),
        nodes=run.nodes_per_step([benchmark.name]),
        tau=macro_tau_of({benchmark.name: results}, draws),
    )


def _comparison(plan: ReplayPlan, subject: PolicyRun, other: PolicyRun, wanted: float) -> Comparison:
    def ratio(ours: Results, theirs: Results) -> Interval:
        return ratio_of(ours, theirs, _draws(plan, ours))

    parts, everything = {}, _part(plan.compared, subject.results, "all")
    for part in PARTS:
        if ours := _part(plan.compared, subject.results, part):
            parts[part] = ratio(ours, _part(plan.compared, other.results, part))
    benchmarks = {name: ratio({name: own}, {name: other.results[name]}) for name, own in everything.items()}
    return Comparison(other.policy, wanted, parts, benchmarks)


def _part(benchmarks: Sequence[Benchmark], results: Results, part: str) -> Results:
    """The results of the replies that belong to a part, of the benchmarks that have any."""
    chosen = {
        benchmark.name: [
            result
            for reply, result in zip(benchmark.replies, results[benchmark.name], strict=True)
            if PARTS[part](reply)
        ]
        for benchmark in benchmarks
    }
    return {name: own for name, own in chosen.items() if own}


def _draws(plan: ReplayPlan, results: Results) -> Draws:
    return Draws({name: len(own) for name, own in results.items()}, seed=plan.seed)
