"""The ranges of numbers that buckets of depths or ranks cover, for whoever shows them."""

from collections.abc import Sequence

__all__ = ["bucket_ranges"]


def bucket_ranges(edges: Sequence[int]) -> list[tuple[int, int | None]]:
    """(first, last) of each bucket from its lower edge, both inclusive; the last bucket has no end (None)."""
    return list(zip(edges, [*(edge - 1 for edge in edges[1:]), None], strict=True))
