"""`goose bench device`: this engine on a GPU, or whatever the machine has."""

import json
from pathlib import Path
from typing import Any

import click

from goose_ray.cli.options import json_option, model_option
from goose_ray.config import EngineConfig, GooseConfig

__all__ = ["device"]


@click.command()
@model_option
@click.option("--device", "on", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--prompts",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompt file; repeat for more. Default: prompts that come along.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Lines of each file; default: 4, on the CPU 2.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="In a reply; default: 64, on the CPU 16.")
@click.option("--chat", is_flag=True, help="Wrap raw prompts in the model's chat template.")
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=click.IntRange(min=1),
    help="Tokens of context; repeat for more. Default: 512 and 4096, on the CPU 256.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Forwards of each kind; default: 10, on the CPU 3.")
@json_option
def device(
    model: str,
    on: str,
    files: tuple[Path, ...],
    limit: int | None,
    max_tokens: int | None,
    chat: bool,
    contexts: tuple[int, ...],
    rounds: int | None,
    as_json: bool,
) -> None:
    """Are the attention backends exact here, what does a forward take, and what is speculation worth?

    `attention_errors` are each backend's largest differences from SDPA in float32 on the CPU, over trees, chunks,
    windows, soft caps and shared prefixes; `replies` compares tokens under trees, in float32, with plain decoding by
    SDPA; `milliseconds` are of a step by context and rows, in the dtype that would be served; `speed` is `anisotropic`
    over `autoregressive`, as in `goose bench engine`. `exact` sums up the first two. What is done at present stands on
    standard error.

    \b
    goose bench device --model Qwen/Qwen3-8B --json
    """
    from goose_ray.assembly import choose_device
    from goose_ray.bench.device.run import DeviceRun, DeviceSizes
    from goose_ray.bench.prompts import CALIBRATION_PROMPTS, read_prompt_files
    from goose_ray.models.loader import resolve

    usual = DeviceSizes.of(choose_device(on).type)
    limit, contexts = limit or usual.limit, contexts or usual.contexts
    num_slots = max(usual.kv_cache_tokens, max(contexts) + 512)
    engine = EngineConfig(max_running_requests=limit, prefix_cache=False, kv_cache_tokens=num_slots)
    run = DeviceRun(
        config=GooseConfig.from_args({"model": model, "device": on}).model_copy(update={"engine": engine}),
        prompts=read_prompt_files(list(files) or [CALIBRATION_PROMPTS], limit=limit),
        chat=chat,
        max_tokens=max_tokens or usual.max_tokens,
        contexts=contexts,
        rounds=rounds or usual.rounds,
        on_stage=lambda stage: click.echo(stage, err=True),
    )
    # before attention is measured, which takes minutes and needs no model
    resolve(model)
    report = run.report()
    click.echo(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))
    if not report["exact"]:
        raise SystemExit(1)


def _lines(report: dict[str, Any]) -> list[str]:
    about = report["device"]
    lines = [f"{about['name']} ({about['type']}), torch {about['torch']}, {report['model']} in {report['dtype']}"]
    for name, of_backend in report["backends"].items():
        errors = of_backend["attention_errors"]
        replies = of_backend["replies"]
        lines.append(
            f"{name}: attention off by {max(errors.values()):.1e} at most, {replies['equal']} of {replies['replies']} "
            f"replies equal (tau {replies['tau']})"
        )
        for context, by_rows in of_backend.get("milliseconds", {}).items():
            figures = "  ".join(f"{rows}: {ms}" for rows, ms in by_rows.items())
            lines.append(f"  ms of a step at {context} tokens of context, by rows  {figures}")
    lines.append(f"anisotropic over autoregressive: {report['speed']['speedup']}")
    return lines
