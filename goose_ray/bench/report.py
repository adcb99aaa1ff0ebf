"""Results of `goose bench` as one JSON object, or as lines to read."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from goose_ray.bench.exact import Check, Difference
from goose_ray.bench.tau import BenchmarkTau, Part, macro_tau

__all__ = ["exact_json", "exact_lines", "tau_json", "tau_table"]


def tau_json(policy: str, budget: int, benchmarks: Sequence[BenchmarkTau]) -> dict[str, Any]:
    """`accepted_by_source` counts draft tokens by who proposed them; one that two sources proposed counts for both."""
    return {
        "policy": policy,
        "budget": budget,
        "macro_tau": round(macro_tau(benchmarks), 4),
        "benchmarks": {benchmark.name: _benchmark_json(benchmark) for benchmark in benchmarks},
    }


def tau_table(policy: str, budget: int, benchmarks: Sequence[BenchmarkTau]) -> str:
    """Columns of fixed width, one line a benchmark and one for the mean."""
    width = max(len("benchmark"), *(len(benchmark.name) for benchmark in benchmarks))
    columns = f"{'tau':>6}  {'natural':>7}  {'repet.':>6}  {'nodes':>6}  {'tokens':>7}  {'steps':>6}  exact"
    lines = [f"policy {policy}, budget {budget}", f"{'benchmark':{width}}  {columns}"]
    for benchmark in benchmarks:
        exact = "yes" if benchmark.exact else f"no: {', '.join(benchmark.inexact)}"
        lines.append(
            f"{benchmark.name:{width}}  {benchmark.total.tau:6.2f}  {_tau_or_dash(benchmark.natural):>7}  "
            f"{_tau_or_dash(benchmark.repetitive):>6}  {benchmark.nodes_per_step:6.1f}  {benchmark.total.tokens:7}  "
            f"{benchmark.total.steps:6}  {exact}"
        )
    lines.append(f"{'mean':{width}}  {macro_tau(benchmarks):6.2f}")
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


def _tau_or_dash(part: Part) -> str:
    return f"{part.tau:.2f}" if part.steps else "-"
