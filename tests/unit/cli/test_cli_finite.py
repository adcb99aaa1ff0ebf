"""Numbers on command lines that are none."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.main import main


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


FLOATS = [
    (path, option)
    for path, command in commands(main)
    for option in command.params
    if isinstance(option, click.Option) and isinstance(option.type, click.types.FloatParamType)
]


def test_they_are_found() -> None:
    assert {"--interval", "--nodes", "--held-out", "--temperature", "--period"} <= {o.opts[0] for _, o in FLOATS}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(("path", "option"), FLOATS, ids=lambda value: value.opts[0] if hasattr(value, "opts") else "")
def test_no_command_takes_what_is_no_finite_number(path: tuple[str, ...], option: click.Option, value: str) -> None:
    with pytest.raises(click.BadParameter):
        option.type.convert(value, option, None)


def test_it_is_a_wrong_command_line() -> None:
    result = CliRunner().invoke(main, ["top", "--interval", "nan"])
    assert result.exit_code == 2
    assert "nan is no finite number" in result.stderr


def test_finite_numbers_pass_and_others_are_told_the_range() -> None:
    assert FiniteRange(min=1).convert("1.5", None, None) == 1.5
    with pytest.raises(click.BadParameter, match="x>=1"):
        FiniteRange(min=1).convert("0.5", None, None)
