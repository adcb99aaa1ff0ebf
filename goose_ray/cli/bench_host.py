"""`goose bench host`: what a step costs the host beside the model."""

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

from goose_ray.cli.figures import rounded
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.options import BUDGET, cpu_time_option, json_option
from goose_ray.config import EMBEDDED_MODEL, EngineConfig

if TYPE_CHECKING:
    from goose_ray.bench.host.host_run import HostCost

__all__ = ["host"]


@click.command()
@click.option("--model", default=EMBEDDED_MODEL, show_default=True, help="Whose tokenizer: embedded, hub id or path.")
@click.option("--policy", default=EngineConfig().policy, show_default=True, help="Tree policy.")
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    default=(60, "auto"),
    show_default=True,
    type=BUDGET,
    help="Nodes that a sequence asks for, or auto; repeat for more.",
)
@click.option("--sequences", default=16, show_default=True, type=click.IntRange(min=1), help="Sequences of a step.")
@click.option("--nodes", default=60, show_default=True, type=click.IntRange(min=8), help="Nodes of a step, in all.")
@click.option("--context", default=512, show_default=True, type=click.IntRange(min=2), help="Tokens of each prompt.")
@click.option("--steps", default=100, show_default=True, type=click.IntRange(min=1), help="Steps measured.")
@click.option("--temperature", default=0.0, show_default=True, type=FiniteRange(0, 2), help="Above 0: seeded sampling.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: the CPUs of this process.")
@cpu_time_option
@json_option
def host(
    model: str,
    policy: str,
    budgets: tuple[int | Literal["auto"], ...],
    sequences: int,
    nodes: int,
    context: int,
    steps: int,
    temperature: float,
    threads: int | None,
    cpu_time: bool,
    as_json: bool,
) -> None:
    """Milliseconds of a step outside the model: engine, speculator and the runner's own part.

    On synthetic traffic, the forward scripted. Medians over steps; `ms` is all but the model and what is done with its
    logits over the whole vocabulary on its device (`logits_ms`); `stages_ms` is what it is made of. Budgets are
    measured one after the other.

    \b
    goose bench host --json
    goose bench host --budget auto --sequences 1 --nodes 24
    """
    import time

    import torch

    from goose_ray.bench.host.host_run import HostRun
    from goose_ray.bench.progress import progress
    from goose_ray.models.loader import resolve
    from goose_ray.models.tokenizer import load_tokenizer

    num_threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(num_threads)
    tokenizer = load_tokenizer(resolve(model))
    costs = {}
    with progress("host", unit="budget", total=len(budgets)) as on_budget:
        for budget in budgets:
            run = HostRun(
                policy=policy,
                budget=budget,
                sequences=sequences,
                nodes=nodes,
                context=context,
                steps=steps,
                temperature=temperature,
                num_threads=num_threads,
                clock=time.process_time if cpu_time else time.perf_counter,
            )
            costs[str(budget)] = run.measure(tokenizer, tokenizer.vocab_size)
            on_budget()
    if as_json:
        about = {"policy": policy, "context": context, "threads": num_threads, "cpu_time": cpu_time}
        budgets_json = {name: rounded(asdict(cost), 3) for name, cost in costs.items()}
        slowest = rounded(max(cost.ms for cost in costs.values()), 3)
        click.echo(json.dumps({**about, "ms": slowest, "budgets": budgets_json}, indent=2))
        return
    for name, cost in costs.items():
        click.echo(_lines(f"{policy}:{name}", cost))


def _lines(name: str, cost: "HostCost") -> str:
    heading = (
        f"{name}: {cost.ms:.2f} ms a step of {cost.sequences} sequences, {cost.nodes:.0f} nodes, tau {cost.tau:.2f}; "
        f"logits {cost.logits_ms:.2f} ms"
    )
    stages = sorted(cost.stages_ms.items(), key=lambda stage: -stage[1])
    rest = cost.ms - sum(ms for _, ms in stages)
    return "\n".join([heading, *(f"  {stage:10} {ms:6.3f}" for stage, ms in (*stages, ("rest", rest)))])
