"""`goose bench transformers`: this engine against transformers' own decoding in tokens per second."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from goose_ray.cli.options import (
    PromptOptions,
    concurrencies_option,
    cpu_time_option,
    policies_option,
    policy_budget_option,
    prompt_options,
    threads_option,
    with_budgets,
)
from goose_ray.config import EngineConfig, GooseConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from goose_ray.assembly import ReplicaParts
    from goose_ray.bench.speed.against import Pace
    from goose_ray.bench.speed.opponents import Opponent

__all__ = ["transformers"]


@click.command("transformers")
@prompt_options
@policies_option("autoregressive", about="Tree policy, or policy:budget; repeat for more.")
@policy_budget_option
@concurrencies_option(1, 16)
@click.option("--padded", is_flag=True, help="Above one at a time: padded batches instead of continuous batching.")
@threads_option
@cpu_time_option
def transformers(
    asked: PromptOptions,
    policies: tuple[str, ...],
    budget: int | Literal["auto"],
    concurrencies: tuple[int, ...],
    padded: bool,
    threads: int | None,
    cpu_time: bool,
) -> None:
    """Tokens per second over those of transformers, interleaved, greedy; prompts included.

    One at a time against `generate`, more against `generate_batch`, transformers' continuous batching. The first
    request of every dialogue is sent; `equal` counts the replies of the same tokens (batches of another shape round
    differently, and a near-tie may then turn).

    \b
    goose bench transformers --prompts gsm8k.jsonl --chat --limit 32 --json
    """
    import time

    from goose_ray.assembly import choose_device, choose_dtype, load_parts
    from goose_ray.bench.progress import progress
    from goose_ray.bench.speed.against import AgainstRun
    from goose_ray.bench.speed.speed_run import Contender
    from goose_ray.models.loader import load_model

    contenders = [Contender(*named) for named in with_budgets(policies, budget)]
    config = EngineConfig(
        budget="auto" if any(contender.budget == "auto" for contender in contenders) else 60,
        max_running_requests=max(concurrencies),
        num_threads=threads,
        prefix_cache=False,
    )
    clock = time.process_time if cpu_time else time.perf_counter
    parts = load_parts(GooseConfig(model=asked.model, engine=config), clock=clock)
    device = choose_device("auto")
    theirs = load_model(parts.path, dtype=choose_dtype("auto", device), device=device).eval()
    prompts = _prompts(asked, parts)
    length = max(map(len, prompts), default=0) + asked.max_tokens
    results = {}
    for concurrency in concurrencies:
        run = AgainstRun(
            parts=parts,
            engine=config,
            opponent=_opponent(theirs, concurrency, padded=padded, max_rows=config.max_batch_rows, length=length),
            contenders=contenders,
            max_tokens=asked.max_tokens,
            concurrency=concurrency,
            clock=clock,
        )
        groups = len(run.groups(prompts))
        with progress(f"{concurrency} at a time", unit="group", total=groups) as on_group:
            results[concurrency] = run.measure(prompts, on_group)
    if asked.as_json:
        about = {"chat": asked.chat, "max_tokens": asked.max_tokens, "cpu_time": cpu_time, "prompts": len(prompts)}
        by_concurrency = {str(concurrency): _json(paces) for concurrency, paces in results.items()}
        click.echo(json.dumps({**about, "concurrency": by_concurrency}, indent=2))
    else:
        click.echo(_lines(results))


def _prompts(asked: PromptOptions, parts: "ReplicaParts") -> list[tuple[int, ...]]:
    """The first request of every dialogue."""
    from goose_ray.bench.prompts import read_prompt_files

    longest = parts.runner.spec.max_model_len - asked.max_tokens
    dialogues = [one for file in read_prompt_files(asked.paths, limit=asked.limit) for one in file.dialogues]
    encoded = [one.prompt_after([], parts.tokenizer, asked.chat, longest) for one in dialogues]
    return [prompt.token_ids for prompt in encoded if prompt is not None]


def _opponent(model: "PreTrainedModel", concurrency: int, *, padded: bool, max_rows: int, length: int) -> "Opponent":
    """`length`: the most tokens of a request and its reply."""
    from goose_ray.bench.speed.opponents import ContinuousBatching, OneAtATime, PaddedBatches

    if concurrency == 1:
        return OneAtATime(model)
    if padded:
        return PaddedBatches(model, concurrency)
    return ContinuousBatching(model, concurrency, max_rows=max_rows, num_tokens=concurrency * length)


def _lines(results: "Mapping[int, dict[str, Pace]]") -> str:
    return "\n".join(
        f"{concurrency:3} at a time  {name:22} " + "  ".join(f"{k} {v}" for k, v in numbers.items())
        for concurrency, paces in results.items()
        for name, numbers in _json(paces).items()
    )


def _json(paces: "dict[str, Pace]") -> dict[str, Any]:
    """`speedup` is over transformers, which is first."""
    first = next(iter(paces.values()))
    return {
        name: {
            "tokens_per_second": round(pace.tokens_per_second, 2),
            "speedup": round(pace.tokens_per_second / first.tokens_per_second, 3),
            "equal": sum(a == b for a, b in zip(pace.replies, first.replies, strict=True)),
        }
        for name, pace in paces.items()
    }
