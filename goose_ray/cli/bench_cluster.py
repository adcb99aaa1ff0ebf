"""`goose bench cluster`: what shared learning costs and what it is worth."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from goose.replay import Recording

__all__ = ["cluster"]


@click.command()
@click.option("--replicas", default=1000, show_default=True, type=click.IntRange(min=10), help="Simulated replicas.")
@click.option("--period", default=2.0, show_default=True, help="Seconds between a replica's reports.")
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
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
    as_json: bool,
) -> None:
    """The aggregator under the reports of many simulated replicas; with --recordings, what replicas gain by it.

    `cpu_share` is of one core. `start` compares a new replica with one that has served half of the replies itself;
    `drift` has replicas serve the benchmarks of --before, then those of --after (by the beginnings of their names),
    tuned by the counts of all, by their own, by those before the change (frozen) or not at all, with weights that
    learn and with weights that do not.

    \b
    goose bench cluster --json
    goose bench cluster --recordings recordings
    """
    from tqdm import tqdm

    from goose_ray.bench.cluster_load import measure_aggregator

    with tqdm(desc="reports", unit="round", disable=not sys.stderr.isatty()) as bar:
        cost = measure_aggregator(replicas, period, periods, seed=seed, on_period=bar.update)
    result: dict[str, Any] = {"aggregator": asdict(cost)}
    if recordings is not None:
        result |= _learning(recordings, before, after, fleet=fleet, budget=budget, seed=seed)
    click.echo(json.dumps(_rounded(result), indent=2) if as_json else _lines(_rounded(result)))


def _learning(
    folder: Path, before: Sequence[str], after: Sequence[str], *, fleet: int, budget: int, seed: int
) -> dict[str, Any]:
    from goose_ray.bench.cluster_learning import DRIFT_MODES, run_drift, run_start
    from goose_ray.bench.recordings import is_session, read_benchmarks
    from goose_ray.errors import ConfigError

    benchmarks = [one for one in read_benchmarks([folder], seed=seed) if not is_session(one.name)]

    def replies(prefixes: Sequence[str], option: str) -> list["Recording"]:
        found = [reply.recording for one in benchmarks if one.name.startswith(tuple(prefixes)) for reply in one.replies]
        if not found:
            names = ", ".join(one.name for one in benchmarks)
            raise ConfigError(f"{option}: no benchmark begins with {' or '.join(prefixes)}; there are: {names}")
        return found

    first, second = replies(before, "--before"), replies(after, "--after")
    every = [reply.recording for one in benchmarks for reply in one.replies]
    starts = run_start(every, replicas=fleet, budget=budget, seed=seed)
    drifts = [
        run_drift(first, second, replicas=fleet, budget=budget, seed=seed, mode=mode, learning_rate=rate)
        for rate in (0.05, 0.0)
        for mode in DRIFT_MODES
    ]
    return {"start": [asdict(start) for start in starts], "drift": [asdict(drift) for drift in drifts]}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value


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
        lines.append(
            f"drift, weights {kind}, tuning {drift['mode']}: tau {drift['tau_before']:.3f} before, "
            f"{drift['tau_first']:.3f} just after, {drift['tau_after']:.3f} after"
        )
    return "\n".join(lines)
