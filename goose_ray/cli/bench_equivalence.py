"""`goose bench equivalence`: whether any policy, batch or preemption changes what a request is answered."""

import json
import sys

import click

from goose_ray.cli.options import PromptOptions, concurrencies_option, policies_option, prompt_options
from goose_ray.config import GooseConfig

__all__ = ["equivalence"]


@click.command()
@prompt_options
@policies_option("autoregressive", "goose", "anisotropic")
@click.option("--sampling", "names", multiple=True, help="Way to sample; repeat for more. Default: all.")
@concurrencies_option(1, 8)
@click.option(
    "--short-of-room",
    default=24,
    show_default=True,
    type=click.IntRange(min=0),
    help="Also so many at a time, in a KV pool so small that sequences are preempted; 0: not.",
)
@click.option("--budget", default=16, show_default=True, type=click.IntRange(min=1), help="Nodes a sequence and step.")
@click.option("--max-prompt-tokens", default=512, show_default=True, help="Longer prompts are cut in the middle.")
def equivalence(
    asked: PromptOptions,
    policies: tuple[str, ...],
    names: tuple[str, ...],
    concurrencies: tuple[int, ...],
    short_of_room: int,
    budget: int,
    max_prompt_tokens: int,
) -> None:
    """Is every answer that of plain decoding: greedy, sampled, penalised, structured, and its log-probabilities?

    Sends the first request of every dialogue with every way to sample, under each policy and at each concurrency, and
    compares with the policy autoregressive, one request at a time and nothing cached. Token ids must be the same,
    log-probabilities within 0.001. The exit status is 1 if they are not, or if nothing was preempted where it should
    have been.

    \b
    goose bench equivalence --prompts gsm8k.jsonl mt_bench.jsonl --limit 5 --max-tokens 48 --json
    """
    from goose_ray.bench.engine.equivalence import Cell
    from goose_ray.bench.engine.equivalence_report import cell_line, equivalence_json, is_whole
    from goose_ray.bench.engine.runs import run_equivalence
    from goose_ray.bench.prompts import read_prompt_files

    def show(cell: Cell) -> None:
        click.echo(cell_line(cell), err=asked.as_json)

    cells = run_equivalence(
        GooseConfig(model=asked.model),
        read_prompt_files(asked.paths, limit=asked.limit),
        policies=policies,
        names=names,
        concurrencies=concurrencies,
        short_of_room=short_of_room,
        budget=budget,
        max_tokens=asked.max_tokens,
        max_prompt_tokens=max_prompt_tokens,
        chat=asked.chat,
        on_cell=show,
    )
    if asked.as_json:
        click.echo(json.dumps(equivalence_json(cells), indent=2))
    if not is_whole(cells):
        sys.exit(1)
