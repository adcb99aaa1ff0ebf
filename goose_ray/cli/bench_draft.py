"""`goose bench draft`: what drafting, building and observing cost the host."""

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from goose_ray.cli.figures import rounded
from goose_ray.cli.options import json_option

if TYPE_CHECKING:
    from goose_ray.bench.host.draft import DraftCost, DraftRun

__all__ = ["draft"]


@click.command()
@click.option("--policy", default="anisotropic", show_default=True, help="Tree policy.")
@click.option("--budget", default=60, show_default=True, type=click.IntRange(min=1), help="Nodes a sequence and step.")
@click.option("--batch", default=32, show_default=True, type=click.IntRange(min=1), help="Sequences of a step.")
@click.option("--vocab", default=32768, show_default=True, type=click.IntRange(min=100), help="Size of the vocabulary.")
@click.option(
    "--context",
    "contexts",
    multiple=True,
    default=(4096, 32768),
    show_default=True,
    type=click.IntRange(min=512),
    help="Tokens of prompt and reply; repeat for more.",
)
@click.option("--steps", default=60, show_default=True, type=click.IntRange(min=1), help="Steps measured.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads that trees are built on, of which at most four are used; default: the CPUs of this process.",
)
@json_option
def draft(
    policy: str,
    budget: int,
    batch: int,
    vocab: int,
    contexts: tuple[int, ...],
    steps: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Microseconds per sequence and step of the speculator's propose and observe, the forward left out.

    On synthetic traffic without a model. `us_per_sequence` is the median over steps of the time that a step waits for
    it, at the first context, and `us_per_sequence_32k` at a context of 32768. Other processes lengthen it; the
    processor's time, of all threads together, stands beside.

    \b
    goose bench draft --json
    goose bench draft --policy goose --batch 8 --context 4096
    """
    from goose_ray.bench.host.draft import DraftRun

    run = DraftRun(
        policy=policy,
        budget=budget,
        batch_size=batch,
        vocab_size=vocab,
        steps=steps,
        num_threads=threads or len(os.sched_getaffinity(0)),
    )
    costs = [run.measure(context) for context in contexts]
    click.echo(json.dumps(_json(run, costs), indent=2) if as_json else _table(costs))


def _json(run: "DraftRun", costs: "list[DraftCost]") -> dict[str, Any]:
    by_context = {cost.context: cost for cost in costs}
    long = by_context.get(32768)
    return {
        "policy": run.policy,
        "budget": run.budget,
        "batch": run.batch_size,
        "vocab": run.vocab_size,
        "threads": run.num_threads,
        "us_per_sequence": round(costs[0].total.wall_us, 1),
        "us_per_sequence_32k": round(long.total.wall_us, 1) if long else None,
        "contexts": {str(context): rounded(asdict(cost), 2) for context, cost in by_context.items()},
    }


def _table(costs: "list[DraftCost]") -> str:
    lines = ["context  nodes   tau  us/sequence: wall   cpu | cpu of propose  observe | of these"]
    for cost in costs:
        stages = ", ".join(f"{name} {us:.1f}" for name, us in cost.stages_cpu_us.items())
        lines.append(
            f"{cost.context:7}  {cost.nodes_per_tree:5.1f}  {cost.tau:4.2f}  {cost.total.wall_us:17.1f}  "
            f"{cost.total.cpu_us:4.1f} | {cost.propose.cpu_us:14.1f}  {cost.observe.cpu_us:7.1f} | {stages}"
        )
    return "\n".join(lines)
