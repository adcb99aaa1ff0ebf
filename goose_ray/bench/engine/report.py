"""Results of `goose bench` as one JSON object, or as lines to read."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from goose_ray.bench.engine.exact import Check, Difference
from goose_ray.bench.engine.tau import BenchmarkTau, Part, compared, macro_tau

__all__ = ["exact_json", "exact_lines", "tau_json", "tau_table"]


def tau_json(policy: str, budget: int | str, benchmarks: Sequence[BenchmarkTau]) -> dict[str, Any]:
    """The means leave out `sessions`, which stand among the benchmarks all the same, unless there is nothing else.

    `accepted_by_source` counts draft tokens by who proposed them; one that two sources proposed counts for both.
    """
    others = compared(benchmarks)
    return {
        "policy": policy,
        "budget": budget,
        "macro_tau": _rounded(macro_tau(benchmarks)),
        "macro_tau_natural": _rounded(macro_tau(benchmarks, "natural")),
        "macro_tau_repetitive": _rounded(macro_tau(benchmarks, "repetitive")),
        "sessions": [benchmark.name for benchmark in benchmarks if benchmark not in others],
        "benchmarks": {benchmark.name: _benchmark_json(benchmark) for benchmark in benchmarks},
    }


def tau_table(policy: str, budget: int | str, benchmarks: Sequence[BenchmarkTau]) -> str:
    """Columns of fixed width, one line a benchmark and one for the mean; below it the sessions."""
    width = max(len("benchmark"), *(len(benchmark.name) for benchmark in benchmarks))
    columns = f"{'tau':>6}  {'natural':>7}  {'repet.':>6}  {'nodes':>6}  {'tokens':>7}  {'steps':>6}  exact"
    lines = [f"policy {policy}, budget {budget}", f"{'benchmark':{width}}  {columns}"]
    others = compared(benchmarks)
    lines += [_tau_line(benchmark, width) for benchmark in others]
    lines.append(
        f"{'mean':{width}}  {_tau_or_dash(macro_tau(benchmarks)):>6}  "
        f"{_tau_or_dash(macro_tau(benchmarks, 'natural')):>7}  {_tau_or_dash(macro_tau(benchmarks, 'repetitive')):>6}"
    )
    sessions = [benchmark for benchmark in benchmarks if benchmark not in others]
    if sessions:
        lines += ["sessions, not in the mean", *(_tau_line(benchmark, width) for benchmark in sessions)]
    cut = {benchmark.name: benchmark.num_cut for benchmark in benchmarks if benchmark.num_cut}
    if cut:
        lines.append("prompts too long for the context, cut in the middle: " + str(cut))
    return "\n".join(lines)


def exact_json(checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "exact": not any(check.differences for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def exact_lines(checks: Sequence[Check]) -> str:
    """One line a check, and one below it for each difference."""
    lines = []
    for check in checks:
        equal = check.num_cases - len(check.differences)
        what = f"{check.kind:8} {check.policy:16} {check.concurrency:3} at a time"
        lines.append(f"{what}: {equal} of {check.num_cases} replies equal")
        lines += [f"  {_difference_line(difference)}" for difference in check.differences]
    return "\n".join(lines)


def _difference_line(difference: Difference) -> str:
    line = f"{difference.case}: token {difference.position} is {difference.found}, expected {difference.expected}"
    return line if difference.logit_gap is None else f"{line} (logit gap {difference.logit_gap:.2g})"


def _benchmark_json(benchmark: BenchmarkTau) -> dict[str, Any]:
    return {
        "tau": round(benchmark.total.tau, 4),
        "tokens": benchmark.total.tokens,
        "steps": benchmark.total.steps,
        "requests": benchmark.total.requests,
        "nodes_per_step": round(benchmark.nodes_per_step, 2),
        "accepted_by_source": {name: stats.accepted for name, stats in sorted(benchmark.by_source.items())},
        "attempted_by_source": {name: stats.attempted for name, stats in sorted(benchmark.by_source.items())},
        "natural": _part_json(benchmark.natural),
        "repetitive": _part_json(benchmark.repetitive),
        "cut_prompts": benchmark.num_cut,
        "exact": benchmark.exact,
        "inexact": list(benchmark.inexact),
    }


def _part_json(part: Part) -> dict[str, Any]:
    return {"tau": round(part.tau, 4), "requests": part.requests, "tokens": part.tokens, "steps": part.steps}


def _tau_line(benchmark: BenchmarkTau, width: int) -> str:
    exact = "yes" if benchmark.exact else f"no: {', '.join(benchmark.inexact)}"
    taus = [part.tau if part.steps else None for part in (benchmark.total, benchmark.natural, benchmark.repetitive)]
    total, natural, repetitive = map(_tau_or_dash, taus)
    return (
        f"{benchmark.name:{width}}  {total:>6}  {natural:>7}  {repetitive:>6}  {benchmark.nodes_per_step:6.1f}  "
        f"{benchmark.total.tokens:7}  {benchmark.total.steps:6}  {exact}"
    )


def _tau_or_dash(tau: float | None) -> str:
    return "-" if tau is None else f"{tau:.2f}"


def _rounded(tau: float | None) -> float | None:
    return None if tau is None else round(tau, 4)
