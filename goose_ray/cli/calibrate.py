"""`goose calibrate`: what the policy anisotropic starts from, fitted to a model and its prompts."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.many_values import ManyValuesCommand
from goose_ray.cli.options import json_option
from goose_ray.config import EMBEDDED_MODEL

if TYPE_CHECKING:
    from goose_ray.bench.replay.calibrate import Calibration

__all__ = ["calibrate"]


@click.command(cls=ManyValuesCommand)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Prompt files; the model's replies are recorded first. Without any, and without recordings: goose's own.",
)
@click.option(
    "--recordings",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Folders or files of `goose record`, in place of prompts or beside them.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The .npz to write.")
@click.option("--weights-only", is_flag=True, help="Keep no texts: the file then holds no word of prompts and replies.")
@click.option("--from-nothing", is_flag=True, help="Start from zero weights, not from those goose comes with.")
@click.option(
    "--held-out",
    default=0.2,
    show_default=True,
    type=FiniteRange(0, 1, max_open=True),
    help="Share of the replies that are not fitted but tell what the fit is worth.",
)
@click.option("--budget", default=16, show_default=True, type=click.IntRange(min=2), help="Nodes per step to fit at.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of order and held-out replies.")
@click.option("--stop-token-id", "stop_ids", multiple=True, type=int, help="For --recordings; a model knows its own.")
@click.option("--model", default=EMBEDDED_MODEL, show_default=True, help="For --prompts: embedded, hub id or path.")
@click.option("--chat", is_flag=True, help="Wrap raw prompts in the model's chat template.")
@click.option("--limit", type=click.IntRange(min=1), help="Lines of each prompt file; default: all.")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(min=1), help="In a reply.")
@json_option
def calibrate(
    prompts: tuple[Path, ...],
    recordings: tuple[Path, ...],
    out: Path,
    weights_only: bool,
    from_nothing: bool,
    held_out: float,
    budget: int,
    seed: int,
    stop_ids: tuple[int, ...],
    model: str,
    chat: bool,
    limit: int | None,
    max_tokens: int,
    as_json: bool,
) -> None:
    """Fit what the policy anisotropic starts from, and write it to a file that the deployment can name.

    Calibration changes no output, only how good drafts are before a replica has learned from its own traffic. Name the
    file in the YAML as `engine.calibration`. It holds weights and, unless --weights-only, the prompts and replies
    themselves, from which drafts are made at once. What it is worth is measured on the replies held out: tau and the
    expected calibration error, before and after.

    \b
    goose calibrate --model Qwen/Qwen3-0.6B --chat --out calibration.npz
    goose calibrate --prompts mine.jsonl --chat --out calibration.npz
    goose calibrate --recordings recordings --out calibration.npz
    """
    _check_out(out)
    from goose.anisotropic.weights import Weights
    from goose_ray.bench.progress import progress
    from goose_ray.bench.prompts import CALIBRATION_PROMPTS
    from goose_ray.bench.recordings import read_benchmarks
    from goose_ray.bench.replay.calibrate import NUM_PASSES
    from goose_ray.bench.replay.calibrate import calibrate as calibrate_on

    if not prompts and not recordings:
        prompts = (CALIBRATION_PROMPTS,)
    with TemporaryDirectory() as folder:
        paths = list(recordings)
        known_stop_ids = set(stop_ids)
        if prompts:
            known_stop_ids |= _record(prompts, Path(folder), model=model, chat=chat, limit=limit, max_tokens=max_tokens)
            paths.append(Path(folder))
        benchmarks = read_benchmarks(paths, seed=seed)
    total = NUM_PASSES * sum(len(benchmark.replies) for benchmark in benchmarks)
    with progress("fit", unit="reply", total=total) as on_reply:
        result = calibrate_on(
            benchmarks,
            held_out=held_out,
            budget=budget,
            seed=seed,
            stop_token_ids=frozenset(known_stop_ids),
            start=Weights.zero() if from_nothing else Weights.prior(),
            keep_texts=not weights_only,
            on_reply=on_reply,
        )
    result.file.save(out)
    click.echo(json.dumps(_as_json(result, out), indent=2) if as_json else _as_lines(result, out))


def _check_out(out: Path) -> None:
    """Before hours of work, not after."""
    if out.suffix != ".npz":
        raise click.BadParameter(f"must end in .npz, not {out.name!r}", param_hint="--out")
    if not out.parent.is_dir():
        raise click.BadParameter(f"folder {out.parent} does not exist", param_hint="--out")


def _record(
    prompts: tuple[Path, ...], folder: Path, *, model: str, chat: bool, limit: int | None, max_tokens: int
) -> set[int]:
    """Writes recordings into `folder`; returns the model's own stop tokens."""
    from goose.policies.autoregressive import AutoregressivePolicy
    from goose_ray.assembly import load_parts
    from goose_ray.bench.engine.record import RecordingRun
    from goose_ray.bench.progress import progress
    from goose_ray.bench.prompts import read_prompt_files
    from goose_ray.config import EngineConfig, GooseConfig

    files = read_prompt_files(prompts, limit=limit)
    engine = EngineConfig(policy=AutoregressivePolicy.name, budget=1, max_running_requests=16)
    parts = load_parts(GooseConfig(model=model, engine=engine))
    run = RecordingRun(parts=parts, engine=engine, chat=chat, max_tokens=max_tokens, concurrency=16)
    for file in files:
        with progress(file.name, unit="dialogue", total=len(file.dialogues)) as on_dialogue:
            run.record(file, folder, on_dialogue)
    return set(parts.runner.spec.eos_token_ids)


def _as_json(result: "Calibration", out: Path) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "out": str(out),
        "replies_fitted": result.num_fitted,
        "replies_held_out": result.num_held_out,
        "before": None if result.before is None else asdict(result.before),
        "after": None if result.after is None else asdict(result.after),
    }


def _as_lines(result: "Calibration", out: Path) -> str:
    lines = [f"{out}: fitted on {result.num_fitted} replies, tried on {result.num_held_out} others"]
    for name, tried in (("before", result.before), ("after", result.after)):
        if tried is not None:
            error = "-" if tried.ece is None else f"{tried.ece:.4f}"
            lines.append(
                f"{name:6}  tau {tried.tau:.3f}  nodes {tried.nodes_per_step:.1f}  expected calibration error {error}"
            )
    return "\n".join(lines)
