"""The draft sources by name. One line a source; its place is its number, which is its bit in `TokenTree.sources`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from goose.errors import UnknownNameError
from goose.sources.base import DraftSource
from goose.sources.context import ContextMatcher
from goose.sources.suffix import DEFAULT_POOL_TOKENS, SuffixPool
from goose.sources.transitions import TransitionTable

__all__ = ["SOURCES", "SOURCE_NAMES", "SourceSet", "SourceSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What the sources of one speculator are built with."""

    # successors a harvested row is worth keeping
    harvest_k: int
    # past outputs kept by the pool, in tokens
    pool_tokens: int


SOURCES: dict[str, Callable[[SourceSettings], DraftSource]] = {
    "context": lambda settings: ContextMatcher(),
    "transitions": lambda settings: TransitionTable(num_successors=settings.harvest_k),
    "pool": lambda settings: SuffixPool(max_tokens=settings.pool_tokens),
}

# All that a node may be credited to. The policy `anisotropic` finds text and rows by an index of its own: its matches
# are credited to "context", its rows to "transitions", and past outputs of other requests to "pool". "grammar" is not
# asked: what a grammar forces is known to whoever holds the grammar, who adds it to the trees.
SOURCE_NAMES: tuple[str, ...] = (*SOURCES, "grammar")

SourceT = TypeVar("SourceT")


class SourceSet:
    """One instance of every registered source. `num_threads` is how many a policy may draft with."""

    def __init__(self, *, harvest_k: int, pool_tokens: int = DEFAULT_POOL_TOKENS, num_threads: int = 1) -> None:
        settings = SourceSettings(harvest_k=harvest_k, pool_tokens=pool_tokens)
        self._sources = {name: build(settings) for name, build in SOURCES.items()}
        self._bits = {name: 1 << number for number, name in enumerate(SOURCE_NAMES)}
        self.harvest_k = harvest_k
        self.num_threads = num_threads

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
