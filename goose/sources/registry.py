"""The draft sources by name. One line a source; its place is its number, which is its bit in `TokenTree.sources`."""

from collections.abc import Callable
from typing import TypeVar

from goose.errors import UnknownNameError
from goose.sources.base import DraftSource
from goose.sources.context import ContextMatcher
from goose.sources.transitions import TransitionTable

__all__ = ["SOURCES", "SOURCE_NAMES", "SourceSet"]

# The argument is the number of successors kept per harvested row.
SOURCES: dict[str, Callable[[int], DraftSource]] = {
    "context": lambda harvest_k: ContextMatcher(),
    "transitions": lambda harvest_k: TransitionTable(num_successors=harvest_k),
}

# All that a node may be credited to. The policy `anisotropic` finds text and rows by an index of its own: its matches
# are credited to "context", its rows to "transitions", and past outputs of other requests to "pool".
SOURCE_NAMES: tuple[str, ...] = (*SOURCES, "pool")

SourceT = TypeVar("SourceT")


class SourceSet:
    """One instance of every registered source. `harvest_k` is how many successors a harvested row is worth keeping."""

    def __init__(self, *, harvest_k: int) -> None:
        self._sources = {name: build(harvest_k) for name, build in SOURCES.items()}
        self._bits = {name: 1 << number for number, name in enumerate(SOURCE_NAMES)}
        self.harvest_k = harvest_k

    def __getitem__(self, name: str) -> DraftSource:
        if name not in self._sources:
            raise UnknownNameError(f"no source {name!r}; known: {', '.join(sorted(self._sources))}")
        return self._sources[name]

    def get(self, name: str, kind: type[SourceT]) -> SourceT:
        """The source of that name, for a policy that is written for one kind of source."""
        source = self[name]
        if not isinstance(source, kind):
            raise TypeError(f"source {name!r} is a {type(source).__name__}, not a {kind.__name__}")
        return source

    def bit(self, name: str) -> int:
        """The source's bit in `TokenTree.sources`."""
        return self._bits[name]
