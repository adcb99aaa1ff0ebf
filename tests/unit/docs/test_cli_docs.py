"""The documentation says what the code says."""

import re
from pathlib import Path

import click
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from goose_ray.cli.main import main
from goose_ray.config import EngineConfig, GooseConfig

REPOSITORY = Path(__file__).parents[3]
DOCS = [*sorted((REPOSITORY / "docs").glob("*.md")), *sorted(REPOSITORY.glob("*.md"))]


def default_of(field: FieldInfo) -> str:
    match field.default:
        case None:
            return "none"
        case bool(value):
            return str(value).lower()
        case value:
            return str(value)


def rows(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Lines of the options table, nested models after the plain fields."""
    plain = [(name, field) for name, field in model.model_fields.items() if name != "engine"]
    return [f"| `{prefix}{name}` | {default_of(field)} | {field.description} |" for name, field in plain]


def test_every_option_stands_in_the_documentation_as_in_the_code() -> None:
    table = "\n".join(
        ["| option | default | meaning |", "|---|---|---|", *rows(GooseConfig), *rows(EngineConfig, "engine.")]
    )
    assert table in (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], click.Command] = {}
    for name, command in group.commands.items():
        found |= commands(command, (*path, name)) if isinstance(command, click.Group) else {(*path, name): command}
    return found


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_goose_commands_in_the_documentation_exist(file: Path) -> None:
    known = commands(main)
    plain = "|".join(name for name, *rest in known if not rest)
    groups = {name for name, *rest in known if rest}
    pattern = rf"goose ((?:(?:{'|'.join(groups)}) |(?:{plain})\b)[^`\n]*)"
    for words in re.findall(pattern, file.read_text(encoding="utf-8")):
        name = tuple(words.split()[: 2 if words.split()[0] in groups else 1])
        assert name in known, f"goose {words}"
        options = {option for one in known[name].params for option in (*one.opts, *one.secondary_opts)}
        used = set(re.findall(r"--[a-z-]+", words))
        assert used <= options, f"goose {words}"


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_files_that_the_documentation_links_to_exist(file: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", file.read_text(encoding="utf-8")):
        assert (file.parent / target).exists(), target
