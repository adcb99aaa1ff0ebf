"""`goose record`: greedy replies on disk, to replay policies on and to calibrate with."""

from pathlib import Path

import click

from goose_ray.cli.options import model_option

__all__ = ["record"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--prompts", "files", type=_FILE, multiple=True, help="Prompt files, one JSON object a line; default: our own."
)
@click.option(
    "--out", "folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of recordings."
)
@click.option("--limit", type=click.IntRange(min=1), help="Lines of each file; default: all.")
@click.option("--chat", is_flag=True, help="Wrap raw prompts in the model's chat template.")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(min=1), help="In a reply.")
@model_option
@click.option("--concurrency", default=16, show_default=True, type=click.IntRange(min=1), help="Dialogues at a time.")
@click.argument("more_files", nargs=-1, type=_FILE, metavar="[FILE]...")
def record(
    files: tuple[Path, ...],
    more_files: tuple[Path, ...],
    folder: Path,
    limit: int | None,
    chat: bool,
    max_tokens: int,
    model: str,
    concurrency: int,
) -> None:
    """Record the model's greedy replies: one .npz a reply, with the 10 most likely tokens after every position.

    Replies that are in the folder already are left as they are, whatever options they were made with: an interrupted
    run goes on where it stopped. `mismatches` counts reply tokens that one forward over the whole text would not have
    chosen: with fp32 none or very few.

    \b
    goose record --out recordings --chat
    goose record --prompts mine.jsonl other.jsonl --out recordings --max-tokens 512
    """
    from goose.policies.autoregressive import AutoregressivePolicy
    from goose_ray.assembly import load_parts
    from goose_ray.bench.engine.record import RecordingRun
    from goose_ray.bench.progress import progress
    from goose_ray.bench.prompts import CALIBRATION_PROMPTS, read_prompt_files
    from goose_ray.config import EngineConfig, GooseConfig

    prompts = read_prompt_files([*files, *more_files] or [CALIBRATION_PROMPTS], limit=limit)
    engine = EngineConfig(policy=AutoregressivePolicy.name, budget=1, max_running_requests=concurrency)
    run = RecordingRun(
        parts=load_parts(GooseConfig(model=model, engine=engine)),
        engine=engine,
        chat=chat,
        max_tokens=max_tokens,
        concurrency=concurrency,
    )
    for file in prompts:
        with progress(file.name, unit="dialogue", total=len(file.dialogues)) as on_dialogue:
            recorded = run.record(file, folder, on_dialogue)
        tokens, mismatches = sum(one.num_tokens for one in recorded), sum(one.num_mismatches for one in recorded)
        click.echo(f"{file.name}: {len(recorded)} replies recorded, {tokens} tokens, {mismatches} mismatches")
