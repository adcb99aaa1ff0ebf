"""The texts' owner: gives each live request a segment, keeps what finished ones leave until room is needed.

Texts are grouped by scope, a number for each `cache_salt` in use. A scope ends with the last text that has it, and no
number is used twice, so neither texts nor rows of a salt outlive it for another.
"""

from dataclasses import dataclass

from goose.anisotropic.segments import Segments
from goose.anisotropic.texts import NO_TOKEN, ROW_MARKS, TEXT_SCOPE, TEXT_TOKEN, Texts, new_texts, resized

__all__ = ["TextArchive"]

# Scope of requests without a salt. It always exists.
UNSALTED = 1


@dataclass(slots=True)
class _Scope:
    number: int
    num_texts: int = 0


class TextArchive:
    """`max_positions` tokens of live and past text; more while live requests alone need more."""

    def __init__(self, max_positions: int) -> None:
        self.texts: Texts = new_texts(max_positions)
        self._segments = Segments(max_positions)
        self._scopes: dict[str | None, _Scope] = {None: _Scope(UNSALTED, num_texts=1)}
        self._num_scopes = 1
        # first position of a past segment -> its salt
        self._past_salts: dict[int, str | None] = {}

    @property
    def is_salted(self) -> bool:
        """Whether any text belongs to a salt."""
        return len(self._scopes) > 1

    def past(self, cache_salt: str | None) -> list[tuple[int, int]]:
        """What finished requests of the salt left, newest first: (first position, tokens)."""
        runs = self._segments.past()
        return [(start, size - 1) for start, size in reversed(runs) if self._past_salts[start] == cache_salt]

    def open(self, size: int, cache_salt: str | None) -> tuple[int, int]:
        """A segment of `size` tokens for a live request: (first position, scope). Drops the oldest past texts for it.

        May replace `texts` by a larger copy.
        """
        start = self._segments.allocate(size + 1)
        while start is None:
            if not self._evict():
                self._extend(size + 1)
            start = self._segments.allocate(size + 1)
        if cache_salt not in self._scopes:
            self._num_scopes += 1
            self._scopes[cache_salt] = _Scope(UNSALTED + self._num_scopes)
        scope = self._scopes[cache_salt]
        scope.num_texts += 1
        return start, scope.number

    def discard(self, start: int, size: int, cache_salt: str | None) -> None:
        """Ends a segment of `open`; nothing of it stays."""
        self._wipe(start, size + 1)
        self._leave(cache_salt)

    def retire(self, start: int, size: int, cache_salt: str | None, *, kept: slice) -> None:
        """Ends a segment of `open`; the positions `kept` (start, stop) stay readable until room is needed."""
        self._wipe(start, kept.start - start)
        self._wipe(kept.stop + 1, start + size - kept.stop)
        self._segments.retire(kept.start, kept.stop + 1 - kept.start)
        self._past_salts[kept.start] = cache_salt

    def _evict(self) -> bool:
        oldest = self._segments.evict()
        if oldest is None:
            return False
        self._wipe(*oldest)
        self._leave(self._past_salts.pop(oldest[0]))
        return True

    def _extend(self, size: int) -> None:
        capacity = len(self.texts.records)
        larger = max(2 * capacity, capacity + size)
        self.texts = resized(self.texts, larger)
        self._segments.extend(larger)

    def _leave(self, cache_salt: str | None) -> None:
        scope = self._scopes[cache_salt]
        scope.num_texts -= 1
        if not scope.num_texts:
            del self._scopes[cache_salt]

    def _wipe(self, start: int, size: int) -> None:
        if size:
            positions = slice(start, start + size)
            records = self.texts.records
            records[positions, TEXT_TOKEN] = NO_TOKEN
            records[positions, TEXT_SCOPE] = records[positions, ROW_MARKS] = 0
            self._segments.free(start, size)
