"""`goose bench engine`: policies against each other in tokens per second."""

import json
import sys
from pathlib import Path
from typing import Literal

import click

from goose_ray.cli.options import BUDGET, prompt_options
from goose_ray.config import EngineConfig, GooseConfig

__all__ = ["engine"]


@click.command()
@prompt_options
@click.option(
    "--policy",
    "policies",
    multiple=True,
    required=True,
    help="Tree policy, or policy:budget; repeat it, the first is what the others are compared with.",
)
@click.option(
    "--budget", default=EngineConfig().budget, show_default=True, type=BUDGET, help="Where a policy has none."
)
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(min=1), help="Dialogues at a time.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: as many as torch takes.")
@click.option("--cpu-time", is_flag=True, help="Measure CPU time of the process, for machines that others use.")
def engine(
    files: tuple[Path, ...],
    more_files: tuple[Path, ...],
    limit: int | None,
    chat: bool,
    max_tokens: int,
    model: str,
    as_json: bool,
    policies: tuple[str, ...],
    budget: int | Literal["auto"],
    concurrency: int,
    threads: int | None,
    cpu_time: bool,
) -> None:
    """Tokens per second of policies in the same engine, interleaved, greedy.

    `speedup` is the second policy's tokens per second over the first's, prompts included; `natural` and `repetitive`
    are those of replies with under and from half of their 4-grams copied, by the time from asking to the end.

    \b
    goose bench engine --policy autoregressive --policy anisotropic:auto --prompts gsm8k.jsonl --chat --json
    """
    import time

    from tqdm import tqdm

    from goose_ray.assembly import load_parts
    from goose_ray.bench.prompts import read_prompt_files
    from goose_ray.bench.speed import Contender, SpeedRun
    from goose_ray.bench.speed_report import speed_json, speed_lines

    contenders = []
    for policy in policies:
        name, _, own = policy.partition(":")
        contenders.append(Contender(name, BUDGET.convert(own, None, None) if own else budget))
    prompts = read_prompt_files([*files, *more_files], limit=limit)
    is_timed = any(contender.budget == "auto" for contender in contenders)
    config = EngineConfig(
        budget="auto" if is_timed else 60,
        max_running_requests=concurrency,
        num_threads=threads,
        prefix_cache=False,
    )
    clock = time.process_time if cpu_time else time.perf_counter
    run = SpeedRun(
        parts=load_parts(GooseConfig(model=model, engine=config), clock=clock),
        engine=config,
        contenders=contenders,
        chat=chat,
        max_tokens=max_tokens,
        concurrency=concurrency,
        clock=clock,
    )
    results = []
    for file in prompts:
        total = len(contenders) * sum(dialogue.num_requests for dialogue in file.dialogues)
        with tqdm(total=total, desc=file.name, unit="reply", disable=not sys.stderr.isatty()) as bar:
            results.append(run.measure(file, bar.update))
    if as_json:
        about = {"chat": chat, "max_tokens": max_tokens, "concurrency": concurrency, "cpu_time": cpu_time}
        click.echo(json.dumps({**about, **speed_json(contenders, results)}, indent=2))
    else:
        click.echo(speed_lines(contenders, results))
