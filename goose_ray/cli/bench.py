"""`goose bench`: measure."""

import json
import sys
from pathlib import Path
from typing import Literal

import click

from goose_ray.cli.bench_channel import channel
from goose_ray.cli.bench_cluster import cluster
from goose_ray.cli.bench_cost import cost
from goose_ray.cli.bench_device import device
from goose_ray.cli.bench_draft import draft
from goose_ray.cli.bench_engine import engine
from goose_ray.cli.bench_equivalence import equivalence
from goose_ray.cli.bench_host import host
from goose_ray.cli.bench_router import router
from goose_ray.cli.bench_simulate import simulate
from goose_ray.cli.bench_transformers import transformers
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.group import Group
from goose_ray.cli.options import (
    BUDGET,
    CALIBRATION,
    PromptOptions,
    concurrencies_option,
    concurrency_option,
    policies_option,
    prompt_options,
)
from goose_ray.config import EngineConfig, GooseConfig

__all__ = ["bench"]


@click.group(cls=Group)
def bench() -> None:
    """Measure acceptance, exactness and speed."""


bench.add_command(channel)
bench.add_command(cluster)
bench.add_command(cost)
bench.add_command(device)
bench.add_command(draft)
bench.add_command(engine)
bench.add_command(equivalence)
bench.add_command(host)
bench.add_command(router)
bench.add_command(simulate)
bench.add_command(transformers)


@bench.command()
@prompt_options
@click.option("--policy", default=EngineConfig().policy, show_default=True, help="Tree policy.")
@click.option(
    "--budget",
    default=EngineConfig().budget,
    show_default=True,
    type=BUDGET,
    help="Nodes verified per step, anchor included; auto: as many as give the most tokens a second on this machine.",
)
@concurrency_option
@click.option(
    "--calibration",
    default="auto",
    show_default=True,
    type=CALIBRATION,
    help="What anisotropic starts from: a file of `goose calibrate`, auto (goose's own for the model) or none.",
)
@click.option(
    "--reference",
    type=click.Choice(["engine", "transformers"]),
    default="engine",
    show_default=True,
    help="Plain greedy decoding to compare with: this engine's policy autoregressive, or transformers' generate.",
)
def tau(
    asked: PromptOptions,
    policy: str,
    budget: int | Literal["auto"],
    concurrency: int,
    calibration: Path | Literal["auto", "none"],
    reference: str,
) -> None:
    """Mean acceptance length (tau) of a policy: committed tokens per step, bonus token included.

    A line of a prompt file has an `id` and one of: `prompt` (raw text), `turns` (user turns, each answered by the
    model) or `messages` (a recorded conversation; the model writes each assistant message anew, with the recorded ones
    as history). Prompts longer than the context less --max-tokens are cut in the middle.

    Every reply is compared with plain greedy decoding; `exact` is true if all its tokens are the same.

    \b
    goose bench tau --prompts gsm8k.jsonl --policy goose --budget 60 --limit 10 --json
    goose bench tau --chat --prompts humaneval.jsonl mt_bench.jsonl --policy chain
    """
    from goose_ray.bench.engine.report import tau_json, tau_table
    from goose_ray.bench.engine.runs import prepare_tau, run_tau
    from goose_ray.bench.prompts import read_prompt_files

    prompts = read_prompt_files(asked.paths, limit=asked.limit)
    # No prefix cache: every prompt is harvested whole, as with a request that comes alone.
    engine = EngineConfig(
        policy=policy,
        budget=budget,
        calibration=calibration,
        max_running_requests=concurrency,
        prefix_cache=False,
    )
    run = prepare_tau(
        GooseConfig(model=asked.model, engine=engine),
        chat=asked.chat,
        max_tokens=asked.max_tokens,
        concurrency=concurrency,
        against_transformers=reference == "transformers",
    )
    results = [run_tau(run, file) for file in prompts]
    if asked.as_json:
        click.echo(json.dumps(tau_json(policy, budget, results), indent=2))
    else:
        click.echo(tau_table(policy, budget, results))


@bench.command()
@prompt_options
@click.option("--base-url", help="Check this running server; default: an engine in this process.")
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="Of a server that asks for one.")
@policies_option("autoregressive", "chain", "goose", "anisotropic")
@concurrencies_option(1, 8)
@click.option(
    "--temperature", default=0.0, show_default=True, type=FiniteRange(0, 2), help="Above 0: check seeded sampling too."
)
@click.option("--max-prompt-tokens", default=4096, show_default=True, help="Longer prompts are cut in the middle.")
def exact(
    asked: PromptOptions,
    base_url: str | None,
    api_key: str | None,
    policies: tuple[str, ...],
    concurrencies: tuple[int, ...],
    temperature: float,
    max_prompt_tokens: int,
) -> None:
    """Is the output, token for token, that of transformers' generate(do_sample=False)?

    Sends the first request of every dialogue, under each policy and at each concurrency. With --temperature also
    whether seeded sampling draws the same tokens under each policy. Where a reply differs, the reference's logit gap
    between the two tokens tells rounding (a gap of about 1e-4 or less) from a fault; either counts as a difference,
    and the exit status is then 1.

    \b
    goose bench exact --prompts gsm8k.jsonl mt_bench.jsonl --limit 10
    goose bench exact --prompts gsm8k.jsonl --base-url http://localhost:8000 --temperature 0.8
    """
    from goose_ray.bench.engine.report import exact_json, exact_lines
    from goose_ray.bench.engine.runs import run_exact
    from goose_ray.bench.prompts import read_prompt_files
    from goose_ray.cli.chat_client import server_address

    checks = run_exact(
        GooseConfig(model=asked.model),
        read_prompt_files(asked.paths, limit=asked.limit),
        base_url=None if base_url is None else server_address(base_url),
        api_key=api_key,
        policies=policies,
        concurrencies=concurrencies,
        max_tokens=asked.max_tokens,
        max_prompt_tokens=max_prompt_tokens,
        chat=asked.chat,
        temperature=temperature,
    )
    click.echo(json.dumps(exact_json(checks), indent=2) if asked.as_json else exact_lines(checks))
    if any(check.differences for check in checks):
        sys.exit(1)
