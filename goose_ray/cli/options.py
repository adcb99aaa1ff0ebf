"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from goose_ray.config import EMBEDDED_MODEL

__all__ = ["BUDGET", "CALIBRATION", "prompt_options"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Budget(click.ParamType[int | Literal["auto"]]):
    """A number of nodes from 1 on, or `auto`."""

    name = "nodes|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        return click.IntRange(min=1).convert(value, param, ctx)


class _Calibration(click.ParamType[Path | Literal["auto", "none"]]):
    """A file, `auto` or `none`."""

    name = "file|auto|none"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | Literal["auto", "none"]:
        if value == "auto":
            return "auto"
        if value == "none":
            return "none"
        path: Path = _FILE.convert(value, param, ctx)
        return path


BUDGET = _Budget()
CALIBRATION = _Calibration()


def prompt_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--prompts FILE…`: click's options take one value each, so that what follows the first arrives as arguments."""
    for add in (
        click.argument("more_files", nargs=-1, type=_FILE, metavar="[FILE]..."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
        click.option("--model", default=EMBEDDED_MODEL, show_default=True, help="Embedded model, hub id or path."),
        click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1), help="In a reply."),
        click.option("--chat", is_flag=True, help="Wrap raw prompts in the model's chat template."),
        click.option("--limit", type=click.IntRange(min=1), help="Lines of each file; default: all."),
        click.option(
            "--prompts",
            "files",
            type=_FILE,
            multiple=True,
            required=True,
            help="Prompt files, one JSON object a line; a file's name is its benchmark's.",
        ),
    ):
        command = add(command)
    return command
