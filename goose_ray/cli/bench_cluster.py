"""`goose bench cluster`: what shared learning costs and what it is worth."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from goose_ray.cli.figures import rounded
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.options import json_option

__all__ = ["cluster"]


@click.command()
@click.option("--replicas", default=1000, show_default=True, type=click.IntRange(min=10), help="Simulated replicas.")
@click.option(
    "--period",
    default=2.0,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Seconds between a replica's reports.",
)
@click.option("--periods", default=5, show_default=True, type=click.IntRange(min=1), help="Rounds of reports timed.")
@click.option(
    "--recordings",
    type=click.Path(exists=True, path_type=Path),
    help="Folder of `goose record`: also what a shared start and shared tuning are worth on these replies.",
)
@click.option(
    "--before", multiple=True, default=("humaneval", "mbpp", "classeval"), show_default=True, help="Traffic at first."
)
@click.option(
    "--after", multiple=True, default=("mt_bench", "spec_bench"), show_default=True, help="Traffic after the change."
)
@click.option("--fleet", default=4, show_default=True, type=click.IntRange(min=2), help="Replicas that serve these.")
@click.option("--budget", default=24, show_default=True, type=click.IntRange(min=2), help="Nodes a step.")
@click.option("--seed", default=0, show_default=True, help="Of the order of the replies.")
@click.option("--orders", default=1, show_default=True, type=click.IntRange(min=1), help="Orders that drift is run in.")
@click.option(
    "--misjudged",
    default=0.0,
    show_default=True,
    type=FiniteRange(-20, 20),
    help="Log-odds by which, in drift, weights take copies of a request's own text for likelier than they are.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Picture of tau after the change (.png, .svg).")
@json_option
def cluster(
    replicas: int,
    period: float,
    periods: int,
    recordings: Path | None,
    before: tuple[str, ...],
    after: tuple[str, ...],
    fleet: int,
    budget: int,
    seed: int,
    orders: int,
    misjudged: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """The aggregator under the reports of many simulated replicas; with --recordings, what replicas gain by it.

    `cpu_share` is of one core. `start` compares a new replica with one that has served half of the replies itself;
    `drift` has replicas serve the benchmarks of --before, then half of those of --after (by the beginnings of their
    names), tuned by the counts of all, by their own, by those before the change (frozen) or not at all, with weights
    that learn and with weights that do not, and compares them with replicas that had served the other half of --after.

    \b
    goose bench cluster --json
    goose bench cluster --recordings recordings
    """
    from goose_ray.bench.cluster.load import measure_aggregator
    from goose_ray.bench.progress import progress

    with progress("reports", unit="round") as on_period:
        cost = measure_aggregator(replicas, period, periods, seed=seed, on_period=on_period)
    result: dict[str, Any] = {"aggregator": asdict(cost)}
    if recordings is not None:
        result |= _learning(
            recordings,
            before,
            after,
            fleet=fleet,
            budget=budget,
            seed=seed,
            orders=orders,
            misjudged=misjudged,
            out=out,
        )
    shown = rounded(result, 4)
    click.echo(json.dumps(shown, indent=2) if as_json else _lines(shown))


def _learning(
    folder: Path,
    before: Sequence[str],
    after: Sequence[str],
    *,
    fleet: int,
    budget: int,
    seed: int,
    orders: int,
    misjudged: float,
    out: Path | None,
) -> dict[str, Any]:
    from goose_ray.bench.cluster.learning import LEARNING_RATES, run_drift, run_start
    from goose_ray.bench.progress import progress
    from goose_ray.bench.recordings import is_session, read_benchmarks, replies_of

    benchmarks = [one for one in read_benchmarks([folder], seed=seed) if not is_session(one.name)]
    first, second = (
        replies_of(benchmarks, prefixes, option) for prefixes, option in ((before, "--before"), (after, "--after"))
    )
    every = [reply.recording for one in benchmarks for reply in one.replies]
    starts = run_start(every, replicas=fleet, budget=budget, seed=seed)
    drifts = []
    with progress("drift", unit="run", total=len(LEARNING_RATES)) as on_run:
        for rate in LEARNING_RATES:
            drifts += run_drift(
                first,
                second,
                replicas=fleet,
                budget=budget,
                seed=seed,
                learning_rate=rate,
                orders=orders,
                misjudged=misjudged,
            )
            on_run()
    if out is not None:
        from goose_ray.bench.cluster.learning_plots import plot_drift

        plot_drift(drifts).savefig(out, dpi=110)
    return {"start": [asdict(start) for start in starts], "drift": [asdict(drift) for drift in drifts]}


def _lines(result: dict[str, Any]) -> str:
    lines = [f"{name:22} {value}" for name, value in result["aggregator"].items()]
    for start in result.get("start", ()):
        reached = "never" if start["steps_to_steady"] is None else f"after {start['steps_to_steady']} steps"
        lines.append(
            f"start from {start['name']}: tau {start['tau']:.2f}, steady {start['steady_tau']:.2f}; "
            f"95 % of it {reached} of {start['steps']}"
        )
    for drift in result.get("drift", ()):
        kind = "learn" if drift["learning_rate"] else "do not learn"
        reached = "never" if drift["steps_to_steady"] is None else f"after {drift['steps_to_steady']} steps"
        lines.append(
            f"drift, weights {kind}, tuning {drift['mode']}: tau {drift['tau_before']:.3f} before, "
            f"{drift['tau_first']:.3f} just after, {drift['tau_after']:.3f} after, {drift['steps_ratio']:.4f} times "
            f"the steps of shared; 95 % of a steady {drift['steady_tau']:.3f} {reached}"
        )
    return "\n".join(lines)
