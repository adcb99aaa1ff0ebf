"""The Markdown of a study's report: what was done, and its tables."""

from collections.abc import Sequence

from goose_ray.bench.replay.bootstrap import Interval
from goose_ray.bench.replay.reliability import NUM_BINS
from goose_ray.bench.replay.study import PARTS, PolicyFigures, Study

__all__ = [
    "acceptance_table",
    "benchmark_table",
    "comparison_table",
    "introduction",
    "macro_table",
    "reliability_table",
    "session_table",
    "shape_table",
]


def introduction(study: Study) -> str:
    plan = study.plan
    counted = [reply for benchmark in plan.compared for reply in benchmark.replies]
    repetitive = sum(reply.repetitive for reply in counted)
    start = f"after {plan.warm} replies of other benchmarks" if plan.warm else "with nothing learned"
    sessions = sum(len(benchmark.replies) for benchmark in plan.sessions)
    return f"""# Policies on recorded replies

{len(counted)} replies of {len(plan.compared)} benchmarks, {repetitive} of them repetitive (at least half of their
4-grams stand before them in prompt or reply) and {len(counted) - repetitive} natural; {sessions} replies of sessions
stand apart. Each benchmark starts {start}, its replies in an order drawn from seed {plan.seed},
the same for every policy.

**tau** is committed tokens per step, bonus token included; macro tau is the mean over benchmarks. **Nodes** are those
verified per step, anchor included, over all replies but sessions. **Budget** is what a policy was told to spend so that
it verifies the wanted number; "no" under *reached* marks a policy that cannot. Brackets hold bootstrap 95 % intervals
over replies; those of ratios are of the same replies under both policies. A benchmark of a single reply adds nothing
to their width."""


def macro_table(study: Study, wanted: float) -> str:
    rows = [
        [
            one.policy,
            str(one.match.budget),
            f"{one.match.nodes:.1f}",
            "yes" if one.match.reached else "no",
            *(_interval(one.parts[part].macro) if part in one.parts else "-" for part in PARTS),
        ]
        for one in study.at(wanted)
    ]
    counts = [one.num_replies for one in study.at(wanted)[0].parts.values()]
    parts = [f"{part} ({count})" for part, count in zip(study.at(wanted)[0].parts, counts, strict=True)]
    parts += ["-"] * (len(PARTS) - len(parts))
    return _table(["policy", "budget", "nodes", "reached", *parts], rows)


def comparison_table(study: Study, wanted: float) -> str:
    rows = [
        [
            one.policy,
            *(_interval(one.parts[part], 3) if part in one.parts else "-" for part in PARTS),
            f"{one.worst[1]:.3f} ({one.worst[0]})",
        ]
        for one in study.comparisons
        if one.wanted == wanted
    ]
    return _table([f"{study.subject} over", *PARTS, "worst benchmark"], rows)


def benchmark_table(study: Study, wanted: float) -> str:
    own = study.at(wanted)
    rows = []
    for benchmark in study.plan.compared:
        natural = sum(not reply.repetitive for reply in benchmark.replies)
        taus = [f"{one.parts['all'].benchmarks[benchmark.name].value:.2f}" for one in own]
        rows.append([benchmark.name, f"{len(benchmark.replies)} ({natural})", *taus])
    return _table(["tau", "replies (natural)", *(one.policy for one in own)], rows)


def session_table(study: Study, wanted: float) -> str:
    rows = [
        [name, one.policy, str(own.num_replies), f"{own.nodes:.1f}", _interval(own.tau)]
        for one in study.at(wanted)
        for name, own in one.sessions.items()
    ]
    return _table(["sessions", "policy", "replies", "nodes", "tau"], sorted(rows, key=lambda row: row[0]))


def acceptance_table(study: Study, wanted: float) -> str:
    rows = []
    for one in study.at(wanted):
        for name, (attempted, accepted) in one.statistics.acceptance.totals().items():
            if attempted:
                rows.append([one.policy, name, str(attempted), str(accepted), f"{accepted / attempted:.3f}"])
    return _table(["policy", "source", "reached nodes", "accepted", "share"], rows)


def shape_table(study: Study, wanted: float) -> str:
    rows = []
    for one in study.at(wanted):
        shape = one.statistics.shape
        parts = (
            ("spine", shape.spine_nodes, shape.spine_reached, shape.spine_accepted),
            ("branches", shape.branch_nodes, shape.branch_reached, shape.branch_accepted),
        )
        nodes = shape.spine_nodes + shape.branch_nodes
        for part, drafted, reached, accepted in parts:
            share = f"{drafted / nodes:.3f}" if nodes else "-"
            per_reached = f"{accepted / reached:.3f}" if reached else "-"
            rows.append([one.policy, part, str(drafted), share, str(reached), str(accepted), per_reached])
    text = (
        "The spine is the path to the deepest node, of equally deep ones to the likeliest; all other draft nodes are\n"
        "branches."
    )
    head = ["policy", "part", "draft nodes", "share", "reached", "accepted", "accepted / reached"]
    return f"{text}\n\n{_table(head, rows)}"


def reliability_table(figures: Sequence[PolicyFigures]) -> str:
    """Only of policies that predict."""
    summary, bins = [], []
    for one in figures:
        found = one.statistics.reliability()
        if found is None:
            continue
        summary.append([one.policy, str(found.num_nodes), f"{found.ece:.4f}", f"{found.ece_equal_counts:.4f}"])
        for own in found.bins:
            between = f"{own.low:.2f}-{own.high:.2f}"
            bins.append([one.policy, between, str(own.num_nodes), f"{own.predicted:.3f}", f"{own.observed:.3f}"])
    text = (
        "Of reached draft nodes, the predicted P(accepted | parent reached) against what came of it. The expected\n"
        "calibration error is sum(nodes in bin / nodes * |predicted - observed|), over "
        f"{NUM_BINS} bins of equal width,\nand over {NUM_BINS} bins of equal numbers of nodes."
    )
    head = ["policy", "reached nodes", "error, equal width", "error, equal counts"]
    detail = _table(["policy", "probability", "nodes", "predicted", "observed"], bins)
    return f"{text}\n\n{_table(head, summary)}\n\n{detail}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(interval: Interval, digits: int = 2) -> str:
    return f"{interval.value:.{digits}f} ({interval.low:.{digits}f}-{interval.high:.{digits}f})"
