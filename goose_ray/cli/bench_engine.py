"""`goose bench engine`: policies against each other in tokens per second."""

import json
from typing import Literal

import click

from goose_ray.cli.options import (
    PromptOptions,
    concurrency_option,
    cpu_time_option,
    policies_option,
    policy_budget_option,
    prompt_options,
    threads_option,
    with_budgets,
)
from goose_ray.config import EngineConfig, GooseConfig

__all__ = ["engine"]


@click.command()
@prompt_options
@policies_option(about="Tree policy, or policy:budget; repeat it, the first is what the others are compared with.")
@policy_budget_option
@concurrency_option
@click.option(
    "--rounds",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Times that each file is answered, by engines that begin anew.",
)
@threads_option
@cpu_time_option
def engine(
    asked: PromptOptions,
    policies: tuple[str, ...],
    budget: int | Literal["auto"],
    concurrency: int,
    rounds: int,
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

    from goose_ray.assembly import load_parts
    from goose_ray.bench.progress import progress
    from goose_ray.bench.prompts import read_prompt_files
    from goose_ray.bench.speed.report import speed_json, speed_lines
    from goose_ray.bench.speed.speed_run import Contender, SpeedRun

    contenders = [Contender(*named) for named in with_budgets(policies, budget)]
    prompts = read_prompt_files(asked.paths, limit=asked.limit)
    is_timed = any(contender.budget == "auto" for contender in contenders)
    config = EngineConfig(
        budget="auto" if is_timed else 60,
        max_running_requests=concurrency,
        num_threads=threads,
        prefix_cache=False,
    )
    clock = time.process_time if cpu_time else time.perf_counter
    run = SpeedRun(
        parts=load_parts(GooseConfig(model=asked.model, engine=config), clock=clock),
        engine=config,
        contenders=contenders,
        chat=asked.chat,
        max_tokens=asked.max_tokens,
        concurrency=concurrency,
        rounds=rounds,
        clock=clock,
    )
    results = []
    for file in prompts:
        total = rounds * len(contenders) * sum(dialogue.num_requests for dialogue in file.dialogues)
        with progress(file.name, unit="reply", total=total) as on_reply:
            results.append(run.measure(file, on_reply))
    if asked.as_json:
        about = {
            "chat": asked.chat,
            "max_tokens": asked.max_tokens,
            "concurrency": concurrency,
            "rounds": rounds,
            "cpu_time": cpu_time,
        }
        click.echo(json.dumps({**about, **speed_json(contenders, results)}, indent=2))
    else:
        click.echo(speed_lines(contenders, results))
