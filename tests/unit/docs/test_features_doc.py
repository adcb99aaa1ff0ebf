"""docs/features.md: every feature of ours names tests that exist, and every word about others names its source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
TEXT = (REPOSITORY / "docs" / "features.md").read_text(encoding="utf-8")
COMPARED, HELD = TEXT.split("\n## What holds ours\n")
COLUMNS = 8
# of a row without tests
NOT_HERE = re.compile(r"no\b|coded for, not yet run")


def rows_of(text: str) -> Iterator[list[str]]:
    """Cells of the rows of all tables, without their heads."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| |"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


FEATURES = list(rows_of(COMPARED))
TESTS = {feature: re.findall(r"`([^`]+)`", named) for feature, named in rows_of(HELD)}


@cache
def names_in(file: Path) -> frozenset[str]:
    """Test functions and methods, as pytest names them."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)}
    return frozenset(name for name in names if name.rsplit("::")[-1].startswith("test_"))


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row[0])
def test_what_is_here_names_tests_and_what_is_not_names_none(row: list[str]) -> None:
    feature, ours = row[:2]
    assert (feature in TESTS) is not bool(NOT_HERE.match(ours)), "no test, or one of what is not here"


@pytest.mark.parametrize("named", [name for names in TESTS.values() for name in names])
def test_named_tests_exist(named: str) -> None:
    path, _, name = named.partition("::")
    assert name in names_in(REPOSITORY / path)


def test_every_test_is_of_a_feature() -> None:
    assert len(FEATURES) > 30
    assert TESTS.keys() <= {row[0] for row in FEATURES}
    assert all(TESTS.values())


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row[0])
def test_what_is_said_of_others_has_a_source(row: list[str]) -> None:
    assert len(row) == COLUMNS
    sources = set(re.findall(r"^\[([\w-]+)\]: https://\S+$", TEXT, re.MULTILINE))
    for cell in row[2:]:
        for word in cell.split("]; [") if cell != "–" else ():
            found = re.fullmatch(r"\[?[^\]]+\]\[([\w-]+)\]?", word)
            assert found, cell
            assert found[1] in sources, cell
