"""Which positions of the texts belong to whom: live requests hold theirs, past ones give way, oldest first.

A segment is a run of positions whose last one stays empty, so that neighbours never read as one text. Pure
bookkeeping: what is written there, and that it is wiped, is the caller's business.
"""

from collections import OrderedDict

__all__ = ["Segments"]


class Segments:
    """Positions 1 .. capacity - 1 (position 0 stays empty: it ends whatever is compared backwards)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # first position -> size, by position; no two touch
        self._gaps: dict[int, int] = {1: capacity - 1}
        # first position -> size of what finished requests left, oldest first
        self._past: OrderedDict[int, int] = OrderedDict()

    def allocate(self, size: int) -> int | None:
        """First position of a run of `size`, or None if no gap is that long."""
        for start, gap in self._gaps.items():
            if gap >= size:
                del self._gaps[start]
                if gap > size:
                    self._add_gap(start + size, gap - size)
                return start
        return None

    def free(self, start: int, size: int) -> None:
        """Gives back a run, whole or in part."""
        before = next((first for first, gap in self._gaps.items() if first + gap == start), None)
        if before is not None:
            size += self._gaps.pop(before)
            start = before
        if start + size in self._gaps:
            size += self._gaps.pop(start + size)
        self._add_gap(start, size)

    def retire(self, start: int, size: int) -> None:
        """What is left of a finished request: readable until its room is needed."""
        self._past[start] = size

    def evict(self) -> tuple[int, int] | None:
        """Takes out the oldest past segment, still to be freed: (first position, size); None if none is left."""
        return self._past.popitem(last=False) if self._past else None

    def past(self) -> list[tuple[int, int]]:
        """First position and size of the past segments, oldest first."""
        return list(self._past.items())

    def extend(self, capacity: int) -> None:
        """More positions at the end."""
        start, self._capacity = self._capacity, capacity
        self.free(start, capacity - start)

    def _add_gap(self, start: int, size: int) -> None:
        self._gaps[start] = size
        self._gaps = dict(sorted(self._gaps.items()))
