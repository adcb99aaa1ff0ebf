"""Blocks of code in the documentation, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BLOCKS", "DOCS", "REPOSITORY", "Block", "simple_commands", "typed", "written_in"]

REPOSITORY = Path(__file__).parents[1]
DOCS = [*sorted((REPOSITORY / "docs").glob("*.md")), *sorted(REPOSITORY.glob("*.md"))]


@dataclass(frozen=True)
class Block:
    file: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}"


def blocks_of(file: Path) -> Iterator[Block]:
    text = file.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(file, text[: found.start()].count("\n") + 1, found[1], found[2])


BLOCKS = [block for file in DOCS for block in blocks_of(file)]


def written_in(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def typed(console: str) -> Iterator[str]:
    """What is typed behind each prompt: a line, or more where a quotation or a backslash says so."""
    lines = iter(console.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            continue
        command = line[2:]
        while command.endswith("\\") or not is_whole(command):
            # as a shell joins them
            command = command[:-1] + next(lines) if command.endswith("\\") else f"{command}\n{next(lines)}"
        yield command


def is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def simple_commands(line: str) -> Iterator[list[str]]:
    """Words of each command of a shell line, without assignments before it and redirections behind it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for token in tokens:
        if set(token) <= set(";|&"):
            if words:
                yield words
            words = []
        elif set(token) <= set("<>"):
            next(tokens)
        elif words or not re.fullmatch(r"\w+=.*", token):
            words.append(token)
