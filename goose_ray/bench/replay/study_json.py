"""A study of recordings as one JSON object, and as lines to read."""

from dataclasses import asdict
from typing import Any

from goose.calibration import DEPTH_EDGES
from goose_ray.bench.replay.bootstrap import Interval
from goose_ray.bench.replay.study import PARTS, Comparison, PartFigures, PolicyFigures, Study

__all__ = ["study_json", "study_lines"]


def study_json(study: Study) -> dict[str, Any]:
    """`figures` has one entry a policy and wanted number of nodes; intervals are [value, low, high]."""
    plan = study.plan
    return {
        "seed": plan.seed,
        "warm": plan.warm,
        "replies": {benchmark.name: len(benchmark.replies) for benchmark in plan.benchmarks},
        "natural_replies": {
            benchmark.name: sum(not reply.repetitive for reply in benchmark.replies) for benchmark in plan.benchmarks
        },
        "sessions": [benchmark.name for benchmark in plan.sessions],
        "subject": study.subject,
        "figures": [_figures_json(one) for one in study.figures],
        "comparisons": [_comparison_json(one) for one in study.comparisons],
    }


def study_lines(study: Study) -> str:
    """One block a wanted number of nodes: budget, nodes, macro tau, and the subject's ratio to each other policy."""
    width = max(len("policy"), *(len(policy) for policy in study.policies))
    ratios = {(one.wanted, one.policy): one for one in study.comparisons}
    lines: list[str] = []
    for wanted in study.wanted:
        lines.append(f"{wanted:g} nodes verified per step")
        lines.append(
            f"{'policy':{width}}  budget   nodes  {'tau':>18}  {'natural':>18}  {'repetitive':>18}  "
            f"{study.subject} over it: all, natural, worst benchmark"
        )
        for one in study.at(wanted):
            taus = "  ".join(f"{_interval_or_dash(one.parts.get(part)):>18}" for part in PARTS)
            line = f"{one.policy:{width}}  {one.match.budget:6}  {one.match.nodes:6.1f}  {taus}"
            if (ratio := ratios.get((wanted, one.policy))) is not None:
                natural = f"{ratio.parts['natural'].value:.3f}" if "natural" in ratio.parts else "-"
                line += f"  {ratio.parts['all'].value:.3f}, {natural}, {ratio.worst[1]:.3f} ({ratio.worst[0]})"
            lines.append(line if one.match.reached else f"{line}  (cannot verify {wanted:g})")
        lines.append("")
    for one in study.figures:
        if (reliability := one.statistics.reliability()) is not None:
            lines.append(
                f"{one.policy} at {one.match.nodes:.1f} nodes: expected calibration error {reliability.ece:.4f} "
                f"({reliability.num_nodes} reached nodes; {reliability.ece_equal_counts:.4f} in bins of equal counts)"
            )
    return "\n".join(lines).rstrip()


def _figures_json(one: PolicyFigures) -> dict[str, Any]:
    reliability = one.statistics.reliability()
    return {
        "policy": one.policy,
        "wanted_nodes": one.match.wanted,
        "budget": one.match.budget,
        "nodes_per_step": round(one.match.nodes, 3),
        "reached": one.match.reached,
        "parts": {name: _part_json(part) for name, part in one.parts.items()},
        "sessions": {
            name: {"replies": own.num_replies, "nodes_per_step": round(own.nodes, 3), "tau": _interval_json(own.tau)}
            for name, own in one.sessions.items()
        },
        "acceptance_by_source": _acceptance_json(one),
        "shape": asdict(one.statistics.shape),
        "reliability": None if reliability is None else asdict(reliability),
    }


def _part_json(part: PartFigures) -> dict[str, Any]:
    return {
        "replies": part.num_replies,
        "nodes_per_step": round(part.nodes, 3),
        "macro_tau": _interval_json(part.macro),
        "tau": {name: _interval_json(interval) for name, interval in part.benchmarks.items()},
    }


def _acceptance_json(one: PolicyFigures) -> dict[str, Any]:
    """source -> attempted and accepted reached nodes, by depth bucket; a bucket is named by its first depth."""
    table, found = one.statistics.acceptance, {}
    for name, (attempted, _) in table.totals().items():
        if attempted:
            by_depth = table.counts(name).sum(axis=2).tolist()
            found[name] = {
                str(edge): {"attempted": tried, "accepted": hit}
                for edge, tried, hit in zip(DEPTH_EDGES, *by_depth, strict=True)
                if tried
            }
    return found


def _comparison_json(one: Comparison) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "wanted_nodes": one.wanted,
        "macro_tau_ratio": {part: _interval_json(interval) for part, interval in one.parts.items()},
        "tau_ratio": {name: _interval_json(interval) for name, interval in one.benchmarks.items()},
        "worst": {"benchmark": one.worst[0], "ratio": round(one.worst[1], 4)},
    }


def _interval_json(interval: Interval) -> list[float]:
    return [round(value, 4) for value in (interval.value, interval.low, interval.high)]


def _interval_or_dash(part: PartFigures | None) -> str:
    return "-" if part is None else f"{part.macro.value:.2f} ({part.macro.low:.2f}-{part.macro.high:.2f})"
