"""The command `goose`. Each group of commands is a module of its own.

Commands import what they need when they run, so that `goose --help` answers at once.
"""

from importlib.metadata import version
from typing import Any

import click

from goose_ray.cli.bench import bench
from goose_ray.cli.calibrate import calibrate
from goose_ray.cli.model import model
from goose_ray.cli.plan import plan
from goose_ray.cli.record import record
from goose_ray.cli.replay import replay
from goose_ray.cli.top import top
from goose_ray.errors import GooseRayError

__all__ = ["main"]


class _Group(click.Group):
    """Shows what the system raises on purpose as one line on standard error, exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GooseRayError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("goose-ray"), prog_name="goose")
def main() -> None:
    """Lossless, training-free tree speculation for LLM serving on Ray."""


main.add_command(model)
main.add_command(bench)
main.add_command(calibrate)
main.add_command(plan)
main.add_command(record)
main.add_command(replay)
main.add_command(top)
