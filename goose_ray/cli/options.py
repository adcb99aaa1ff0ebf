"""Options that several commands share."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from goose_ray.config import EMBEDDED_MODEL, EngineConfig

__all__ = [
    "BUDGET",
    "CALIBRATION",
    "PromptOptions",
    "api_key_option",
    "concurrencies_option",
    "concurrency_option",
    "cpu_time_option",
    "json_option",
    "model_option",
    "policies_option",
    "policy_budget_option",
    "prompt_options",
    "threads_option",
    "with_budgets",
]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Budget(click.ParamType[int | Literal["auto"]]):
    """A number of nodes from 1 on, or `auto`."""

    name = "nodes|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        try:
            return click.IntRange(min=1).convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{str(value)!r} is neither a number of nodes from 1 on nor auto", param, ctx)


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

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
model_option = click.option(
    "--model", default=EMBEDDED_MODEL, show_default=True, help="Embedded model, hub id or path."
)
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads; default: as many as torch takes."
)
cpu_time_option = click.option(
    "--cpu-time", is_flag=True, help="Measure CPU time of the process, for machines that others use."
)
concurrency_option = click.option(
    "--concurrency", default=1, show_default=True, type=click.IntRange(min=1), help="Dialogues at a time."
)
policy_budget_option = click.option(
    "--budget", default=EngineConfig().budget, show_default=True, type=BUDGET, help="Where a policy has none."
)


def _header_text(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value.isascii() and value.isprintable()):
        # The key itself is a secret.
        raise click.BadParameter("must be of printable ASCII characters, and is not: is there a line break in it?")
    return value


api_key_option = click.option(
    "--api-key",
    envvar="OPENAI_API_KEY",
    show_envvar=True,
    callback=_header_text,
    help="Of a server that asks for one.",
)


def policies_option(*default: str, about: str = "Tree policy; repeat for more.") -> Callable[..., Any]:
    """`policies`; required where there is no default."""
    return click.option(
        "--policy",
        "policies",
        multiple=True,
        default=default or None,
        required=not default,
        show_default=bool(default),
        help=about,
    )


def concurrencies_option(*default: int) -> Callable[..., Any]:
    return click.option(
        "--concurrency",
        "concurrencies",
        multiple=True,
        default=default,
        show_default=True,
        type=click.IntRange(min=1),
        help="Requests at a time; repeat for more.",
    )


def with_budgets(policies: Sequence[str], budget: int | Literal["auto"]) -> list[tuple[str, int | Literal["auto"]]]:
    """What `policy` or `policy:budget` says, with `budget` where it says none. Raises click.BadParameter."""
    named = [policy.partition(":") for policy in policies]
    return [(name, BUDGET.convert(own, None, None) if own else budget) for name, _, own in named]


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """What every command on prompt files is asked."""

    paths: tuple[Path, ...]
    # lines of each file
    limit: int | None
    chat: bool
    max_tokens: int
    model: str
    as_json: bool


def prompt_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the command with its PromptOptions first.

    `--prompts FILE…`: click's options take one value each, so that what follows the first arrives as arguments.
    """

    @functools.wraps(command)
    def collected(
        *,
        files: tuple[Path, ...],
        more_files: tuple[Path, ...],
        limit: int | None,
        chat: bool,
        max_tokens: int,
        model: str,
        as_json: bool,
        **others: Any,
    ) -> None:
        asked = PromptOptions((*files, *more_files), limit, chat, max_tokens, model, as_json)
        command(asked, **others)

    options: Callable[..., Any] = collected
    for add in (
        click.argument("more_files", nargs=-1, type=_FILE, metavar="[FILE]..."),
        json_option,
        model_option,
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
        options = add(options)
    return options
