"""`goose bench cost`: what a forward takes by its rows."""

import json

import click

from goose_ray.cli.options import cpu_time_option, json_option, model_option, threads_option
from goose_ray.config import EngineConfig, GooseConfig

__all__ = ["cost"]


@click.command()
@model_option
@click.option("--context", default=512, show_default=True, type=click.IntRange(min=1), help="Tokens of context.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(min=1), help="Forwards of each kind.")
@threads_option
@cpu_time_option
@json_option
def cost(model: str, context: int, rounds: int, threads: int | None, cpu_time: bool, as_json: bool) -> None:
    """Milliseconds of a forward by its number of rows: this engine's and transformers' own, interleaved.

    `relative` is ours as a part of transformers' forward of one row, which is what a token costs without speculation.

    \b
    goose bench cost --threads 2 --json
    """
    import time

    from goose_ray.assembly import choose_device, choose_dtype, load_parts
    from goose_ray.bench.progress import progress
    from goose_ray.bench.speed.cost import measure_rows
    from goose_ray.models.loader import load_model

    config = GooseConfig(model=model, engine=EngineConfig(num_threads=threads))
    parts = load_parts(config)
    device = choose_device(config.device)
    theirs = load_model(parts.path, dtype=choose_dtype(config.dtype, device), device=device)
    clock = time.process_time if cpu_time else time.perf_counter
    with progress("cost", unit="round", total=rounds + 1) as on_round:
        costs = measure_rows(
            parts.runner, theirs.eval(), context=context, rounds=rounds, clock=clock, on_round=on_round
        )
    one_row = costs[0].transformers_ms
    if as_json:
        rows = {
            str(row.rows): {
                "ms": round(row.ours_ms, 3),
                "transformers_ms": round(row.transformers_ms, 3),
                "relative": round(row.ours_ms / one_row, 3),
                "transformers_relative": round(row.transformers_ms / one_row, 3),
            }
            for row in costs
        }
        click.echo(json.dumps({"context": context, "rounds": rounds, "cpu_time": cpu_time, "rows": rows}, indent=2))
        return
    click.echo(f"{'rows':>5}  {'ms':>8}  {'relative':>8}  {'transformers ms':>15}  {'relative':>8}")
    for row in costs:
        click.echo(
            f"{row.rows:5}  {row.ours_ms:8.1f}  {row.ours_ms / one_row:8.2f}  {row.transformers_ms:15.1f}  "
            f"{row.transformers_ms / one_row:8.2f}"
        )
