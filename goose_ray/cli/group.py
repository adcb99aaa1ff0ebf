"""How groups of commands behave: errors as one line, summaries in full."""

from typing import Any

import click

from goose.errors import InvalidSnapshotError, UnknownNameError
from goose_ray.errors import GooseRayError

__all__ = ["Group"]

_UNCUT = 1000
# The library's other exceptions are faults of ours.
_MISTAKES = (GooseRayError, InvalidSnapshotError, UnknownNameError)


class Group(click.Group):
    """Shows what is raised on purpose as one line on standard error, exit status 1; and in `--help` the whole first
    sentence of each command, where click would cut it to what a line holds.
    """

    # groups inside are such groups too
    group_class = type

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except _MISTAKES as error:
            raise click.ClickException(str(error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(_UNCUT)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
