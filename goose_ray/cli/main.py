"""The command `goose`. Each group of commands is a module of its own.

Commands import what they need when they run, so that `goose --help` answers at once.
"""

from importlib.metadata import version

import click

from goose_ray.cli.bench import bench
from goose_ray.cli.calibrate import calibrate
from goose_ray.cli.chat import chat
from goose_ray.cli.doctor import doctor
from goose_ray.cli.group import Group
from goose_ray.cli.keys import keys
from goose_ray.cli.model import model
from goose_ray.cli.plan import plan
from goose_ray.cli.record import record
from goose_ray.cli.replay import replay
from goose_ray.cli.serve import serve
from goose_ray.cli.top import top

__all__ = ["main"]


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("goose-ray"), prog_name="goose")
def main() -> None:
    """Lossless, training-free tree speculation for LLM serving on Ray.

    \b
    goose doctor                     is everything here that a server needs?
    goose serve                      the embedded model on port 8000
    goose chat "Hello"               an answer from it, with its speed

    Exit status of all commands: 0 if it did what it says, 1 if it could not or a check failed, 2 for a wrong command
    line. What goes wrong is told on standard error; with --json, standard output holds JSON and nothing else.
    """


main.add_command(serve)
main.add_command(chat)
main.add_command(top)
main.add_command(doctor)
main.add_command(keys)
main.add_command(model)
main.add_command(plan)
main.add_command(calibrate)
main.add_command(record)
main.add_command(replay)
main.add_command(bench)
