"""`goose bench router`: what it is worth that conversations return to the replica that knows them."""

import json
from dataclasses import asdict
from typing import Any

import click

from goose_ray.cli.figures import rounded
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.options import PromptOptions, prompt_options
from goose_ray.config import EngineConfig

__all__ = ["router"]


@click.command()
@prompt_options
@click.option("--replicas", default=2, show_default=True, type=click.IntRange(min=1), help="Replicas of the model.")
@click.option("--routers", default=1, show_default=True, type=click.IntRange(min=1), help="Ingress processes.")
@click.option("--at-once", default=16, show_default=True, type=click.IntRange(min=1), help="Conversations at a time.")
@click.option(
    "--think",
    default=2.0,
    show_default=True,
    type=FiniteRange(min=0),
    help="Mean seconds between a reply and the next turn.",
)
@click.option(
    "--max-ongoing", default=32, show_default=True, type=click.IntRange(min=1), help="Requests that a replica takes."
)
@click.option(
    "--running",
    default=EngineConfig().max_running_requests,
    show_default=True,
    type=click.IntRange(min=1),
    help="Of these, requests in a batch.",
)
@click.option(
    "--kv-tokens",
    default=EngineConfig().kv_cache_tokens,
    show_default=True,
    type=click.IntRange(min=64),
    help="KV slots of a replica.",
)
@click.option("--context", default=8192, show_default=True, type=click.IntRange(min=64), help="Longest prompt + reply.")
@click.option(
    "--forward-ms", default=60.0, show_default=True, type=FiniteRange(min=0), help="Of a step, without its rows."
)
@click.option("--row-ms", default=2.8, show_default=True, type=FiniteRange(min=0), help="Of each row of a step.")
@click.option("--seed", default=0, show_default=True, help="Of the order, the pauses and the routers' draws.")
def router(
    asked: PromptOptions,
    replicas: int,
    routers: int,
    at_once: int,
    think: float,
    max_ongoing: int,
    running: int,
    kv_tokens: int,
    context: int,
    forward_ms: float,
    row_ms: float,
    seed: int,
) -> None:
    """Prefix cache hits and queue waits under the router `prefix` and under Ray Serve's own, `power_of_two`.

    The recorded conversations of the prompt files are sent turn by turn, interleaved. The replicas are real engines
    with everything but a model: replies are the recorded ones, and a step takes --forward-ms and --row-ms for each row
    (by default about what the embedded model takes on two CPU cores) on a virtual clock: a seed gives the same figures
    anywhere.

    \b
    goose bench router --prompts agentic_sessions.jsonl support_sessions.jsonl --json
    goose bench router --prompts agentic_sessions.jsonl --replicas 4 --routers 4 --forward-ms 12 --row-ms 0.05
    """
    from goose_ray.bench.cluster.echo_replica import StepPrice
    from goose_ray.bench.cluster.router import RouterRun, turns_of
    from goose_ray.bench.prompts import read_prompt_files
    from goose_ray.models.loader import resolve
    from goose_ray.models.tokenizer import load_tokenizer
    from goose_ray.routing.prompt_key import blocks_of

    tokenizer = load_tokenizer(resolve(asked.model))
    dialogues = [one for file in read_prompt_files(asked.paths, limit=asked.limit) for one in file.dialogues]
    max_prompt = min(context, kv_tokens) - asked.max_tokens
    sessions = [turns_of(one, tokenizer, max_prompt=max_prompt, max_reply=asked.max_tokens) for one in dialogues]
    run = RouterRun(
        replicas=replicas,
        routers=routers,
        at_once=at_once,
        think_s=think,
        max_ongoing=max_ongoing,
        engine=EngineConfig(kv_cache_tokens=kv_tokens, max_running_requests=running, max_waiting_requests=max_ongoing),
        price=StepPrice(forward_ms / 1e3, row_ms / 1e3),
        max_model_len=context,
        blocks_per_replica=blocks_of(kv_tokens),
        seed=seed,
    )
    found = [asdict(run.measure(sessions, tokenizer, name)) for name in ("power_of_two", "prefix")]
    before, after = found
    result: dict[str, Any] = {
        "routers": found,
        "hit_rate_ratio": after["hit_rate"] / before["hit_rate"] if before["hit_rate"] else None,
        "queue_wait_p95_ratio": after["queue_wait_p95_s"] / before["queue_wait_p95_s"],
    }
    result = rounded(result, 4)
    click.echo(json.dumps(result, indent=2) if asked.as_json else _lines(result))


def _lines(result: dict[str, Any]) -> str:
    lines = [
        f"{one['router']:12} hits {one['hit_rate']:.1%} of {one['prompt_tokens']} prompt tokens; queue wait p50 "
        f"{one['queue_wait_p50_s']:.3f} s, p95 {one['queue_wait_p95_s']:.3f} s; first token p95 "
        f"{one['first_token_p95_s']:.2f} s; requests {one['requests_by_replica']}"
        for one in result["routers"]
    ]
    hits, waits = result["hit_rate_ratio"], result["queue_wait_p95_ratio"]
    return "\n".join([*lines, f"prefix / power_of_two: hit rate {hits}, p95 queue wait {waits}"])
