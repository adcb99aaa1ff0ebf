"""`goose bench simulate`: the aggregator and its tuning over a thousand simulated replicas under production traffic."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goose_ray.cli.figures import rounded
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.options import json_option

if TYPE_CHECKING:
    from goose_ray.bench.simulation.records import Kind, Simulation

__all__ = ["simulate"]

_TRACE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--code", type=_TRACE, required=True, help="Trace of the replicas that write code.")
@click.option("--chat", type=_TRACE, required=True, help="Trace of the replicas that talk.")
@click.option(
    "--recordings",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="Folder of `goose record`: what steps commit.",
)
@click.option(
    "--code-replies", multiple=True, default=("humaneval", "mbpp", "classeval"), show_default=True, help="Benchmarks."
)
@click.option("--chat-replies", multiple=True, default=("mt_bench", "spec_bench"), show_default=True, help="The same.")
@click.option("--replicas", default=1000, show_default=True, type=click.IntRange(min=10), help="Simulated replicas.")
@click.option("--seconds", default=300, show_default=True, type=click.IntRange(min=20), help="Simulated time.")
@click.option(
    "--period",
    default=2.0,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Seconds between a replica's reports.",
)
@click.option(
    "--load",
    default=0.6,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Part of what the fleet can do that is asked of it.",
)
@click.option("--budget", default=16, show_default=True, type=click.IntRange(min=2), help="Nodes a sequence and step.")
@click.option(
    "--step-ms",
    default=25.0,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Milliseconds of a step, however few rows it has.",
)
@click.option(
    "--row-ms", default=0.08, show_default=True, type=FiniteRange(min=0), help="Milliseconds more for each row."
)
@click.option(
    "--lost", default=0.3, show_default=True, type=FiniteRange(0, 1), help="Part of the reports lost, and part doubled."
)
@click.option(
    "--killed", default=0.2, show_default=True, type=FiniteRange(0, 1), help="Part of the replicas killed at once."
)
@click.option(
    "--start",
    default=30.0,
    show_default=True,
    type=FiniteRange(min=0),
    help="Seconds until a killed replica is replaced.",
)
@click.option(
    "--misjudged",
    default=0.0,
    show_default=True,
    type=FiniteRange(-20, 20),
    help="Log-odds by which all replicas think copies of a request's own text too likely, until tuned.",
)
@click.option("--autoscale", is_flag=True, help="Let the autoscaling policy say how many replicas there are.")
@click.option(
    "--target-ongoing",
    type=FiniteRange(min=0, min_open=True),
    help="With --autoscale: Serve's own policy instead, aiming at so many requests a replica.",
)
@click.option(
    "--initial",
    default=0.5,
    show_default=True,
    type=FiniteRange(0, 1),
    help="Part of the replicas that autoscaling begins with.",
)
@click.option(
    "--upscale-delay", default=5.0, show_default=True, type=FiniteRange(min=0), help="Seconds that more must be wanted."
)
@click.option(
    "--downscale-delay",
    default=120.0,
    show_default=True,
    type=FiniteRange(min=0),
    help="Seconds that fewer must be wanted.",
)
@click.option("--seed", default=0, show_default=True, help="Of everything drawn.")
@click.option("--out", type=click.Path(path_type=Path), help="Picture of tau, load and tuning over time (.png, .svg).")
@json_option
def simulate(
    code: Path,
    chat: Path,
    recordings: Path,
    code_replies: tuple[str, ...],
    chat_replies: tuple[str, ...],
    replicas: int,
    seconds: int,
    period: float,
    load: float,
    budget: int,
    step_ms: float,
    row_ms: float,
    lost: float,
    killed: float,
    start: float,
    misjudged: float,
    autoscale: bool,
    target_ongoing: float | None,
    initial: float,
    upscale_delay: float,
    downscale_delay: float,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """The real aggregator and tuning, and simulated replicas under the arrivals and lengths of two traces.

    Reports are lost and doubled all the time. Replicas are killed after 30 % of the time, the aggregator after 55 %,
    and after 75 % those that wrote code get what the others get. Traces are Azure's CSV or Mooncake's JSON lines,
    scaled to the load.

    \b
    goose bench simulate --code azure_code_2023.csv --chat azure_conv_2023.csv --recordings recordings
    goose bench simulate --code azure_code_2023.csv --chat mooncake_conversation.jsonl --recordings recordings --json
    """
    from goose_ray.bench.progress import progress
    from goose_ray.bench.simulation.records import ScalingPlan, SimulationPlan
    from goose_ray.bench.simulation.simulation import simulate as run

    traffic = [("code", code, code_replies), ("chat", chat, chat_replies)]
    kinds = _kinds(recordings, traffic, budget=budget, seed=seed, misjudged=misjudged)
    scaling = ScalingPlan(
        initial=initial,
        upscale_delay_s=upscale_delay,
        downscale_delay_s=downscale_delay,
        target_ongoing=target_ongoing,
    )
    plan = SimulationPlan(
        replicas=replicas,
        seconds=float(seconds),
        period_s=period,
        load=load,
        budget=budget,
        step_s=step_ms / 1e3,
        row_s=row_ms / 1e3,
        lost=lost,
        killed=killed,
        start_s=start,
        scaling=scaling if autoscale else None,
        seed=seed,
    )
    with progress("simulated", unit="second", total=seconds) as on_second:
        found = run(kinds, plan, on_second=on_second)
    if out is not None:
        from goose_ray.bench.cluster.learning_plots import plot_simulation

        plot_simulation(found).savefig(out, dpi=110)
    click.echo(json.dumps(rounded(asdict(found), 4)) if as_json else _lines(found))


def _kinds(
    recordings: Path, traffic: Iterable[tuple[str, Path, tuple[str, ...]]], *, budget: int, seed: int, misjudged: float
) -> list["Kind"]:
    """Each of `traffic` has a name, a trace, and how the names of the benchmarks begin whose replies it writes."""
    from goose_ray.bench.recordings import is_session, read_benchmarks, replies_of
    from goose_ray.bench.simulation.records import Kind
    from goose_ray.bench.simulation.step_library import StepLibrary
    from goose_ray.bench.simulation.traces import read_trace

    benchmarks = [one for one in read_benchmarks([recordings], seed=seed) if not is_session(one.name)]
    kinds = []
    for name, trace, prefixes in traffic:
        replies = replies_of(benchmarks, prefixes, f"--{name}-replies")
        library = StepLibrary.record(replies, budget=budget, size=256, seed=seed, misjudged=misjudged)
        kinds.append(Kind(name, read_trace(trace), library))
    return kinds


def _lines(found: "Simulation") -> str:
    share, exact = 100 * found.aggregator_cpu_share, "exact" if found.exact else "WRONG"
    heard = f"{found.reports} of {found.mean_report_bytes} bytes heard"
    token_ms = f"p50 {1e3 * found.token_p50_s:.0f} ms, p95 {1e3 * found.token_p95_s:.0f} ms"
    lines = [
        f"{found.replicas} replicas, {found.seconds:.0f} s: {found.requests} requests, {found.finished} answered",
        f"reports: {heard}, {found.lost} lost, {found.doubled} doubled",
        f"aggregator: {share:.1f} % of a core; counters of the living: {exact}",
        f"replicas: {found.mean_live:.0f} on average",
        f"queue wait: p50 {found.queue_wait_p50_s:.2f} s, p95 {found.queue_wait_p95_s:.2f} s",
        f"an answer's seconds from arrival by its tokens: {token_ms}",
    ]
    lines += [
        f"{name}: tau {untuned:.3f} untuned, {found.tuned[name]:.3f} tuned" for name, untuned in found.untuned.items()
    ]
    for event in found.events:
        known, tuned, settled = (
            "never" if seconds is None else f"{seconds:.0f} s"
            for seconds in (event.seconds_to_known, event.seconds_to_tuned, event.seconds_to_settled)
        )
        lines.append(
            f"{event.at_s:.0f} s, {event.what}: tau {event.tau_before:.3f} before, {event.tau_after:.3f} after, "
            f"{event.tau_settled:.3f} settled, after {settled}; all known after {known}, all tuned after {tuned}; "
            f"{event.restarted} requests began anew"
        )
    return "\n".join(lines)
