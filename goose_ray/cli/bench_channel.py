"""`goose bench channel`: what it costs to have ranks take a step."""

import json

import click

from goose_ray.cli.options import json_option

__all__ = ["channel"]


@click.command()
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(min=1), help="Ranks of the gang.")
@click.option("--sequences", default=8, show_default=True, type=click.IntRange(min=1), help="Sequences of a step.")
@click.option("--nodes", default=16, show_default=True, type=click.IntRange(min=1), help="Nodes of each tree.")
@click.option("--context", default=512, show_default=True, type=click.IntRange(min=1), help="Tokens of context.")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1), help="Turns of each way.")
@click.option("--steps", default=25, show_default=True, type=click.IntRange(min=1), help="Steps of a turn.")
@json_option
def channel(ranks: int, sequences: int, nodes: int, context: int, rounds: int, steps: int, as_json: bool) -> None:
    """Milliseconds of a step to all ranks and back, without a model: goose's channel, and plain actor calls to all
    ranks. They take turns; medians. `ratio` is the channel's part of the actor calls'.

    Starts a Ray cluster of its own on this machine.

    \b
    goose bench channel --json
    """
    import ray

    from goose_ray.bench.host.channel import measure_channel
    from goose_ray.bench.progress import progress

    ray.init(address="local", include_dashboard=False, log_to_driver=False, object_store_memory=150 * 2**20)
    try:
        with progress("channel", unit="round", total=rounds) as on_round:
            cost = measure_channel(
                num_ranks=ranks,
                sequences=sequences,
                nodes=nodes,
                context=context,
                rounds=rounds,
                steps=steps,
                on_round=on_round,
            )
    finally:
        ray.shutdown()
    if as_json:
        found = {
            "ranks": ranks,
            "sequences": sequences,
            "nodes": nodes,
            "context": context,
            "channel_ms": round(cost.channel_ms, 3),
            "actor_calls_ms": round(cost.actor_calls_ms, 3),
            "ratio": round(cost.ratio, 3),
        }
        click.echo(json.dumps(found, indent=2))
        return
    for name, ms in (("channel", cost.channel_ms), ("actor calls", cost.actor_calls_ms)):
        click.echo(f"{name:15} {ms:8.3f} ms")
    click.echo(f"{'ratio':15} {cost.ratio:8.3f}")
