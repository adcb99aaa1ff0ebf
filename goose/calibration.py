"""How often each source's draft nodes are accepted: counts over reached nodes, mergeable across replicas.

A node behind a rejection was never tried, so only *reached* nodes count as attempts: their parent was accepted or is
the anchor. Knows nothing of how trees are built or who merges the tables.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.errors import InvalidSnapshotError
from goose.tree import IntArray, TokenTree

__all__ = ["DEPTH_EDGES", "RANK_EDGES", "AcceptanceTable"]

CountArray = NDArray[np.int64]

# First depth of each depth bucket and first rank of each rank bucket; the last bucket is open.
DEPTH_EDGES = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65)
RANK_EDGES = (0, 1, 2, 3, 5, 8)
# Accepted tokens by place in the draft; the last place also takes what lies behind it.
_NUM_POSITIONS = 128
_SHAPE = (2, len(DEPTH_EDGES), len(RANK_EDGES))
_SIZE = len(DEPTH_EDGES) * len(RANK_EDGES)
# depth -> the first place of its bucket among the counts of a source, rank -> the place in it; the last entry is open
_DEPTH_PLACES = [(bisect_right(DEPTH_EDGES, depth) - 1) * len(RANK_EDGES) for depth in range(DEPTH_EDGES[-1] + 1)]
_RANK_PLACES = [bisect_right(RANK_EDGES, rank) - 1 for rank in range(RANK_EDGES[-1] + 1)]


class AcceptanceTable:
    """Counts of attempts and accepts by source, depth and rank among the siblings of the same source.

    Cumulative: counts only grow, so reports of one incarnation merge by maximum and those of different incarnations
    by addition, whatever their order.
    """

    def __init__(self, source_names: Sequence[str] = ()) -> None:
        # Plain integers, because a step changes few of them and each only by one.
        # source -> attempted, then accepted, by depth bucket and rank bucket
        self._counts: dict[str, list[int]] = {name: [0] * (2 * _SIZE) for name in source_names}
        # attempted, then accepted tokens at depth position + 1 of the verified path
        self._positions: list[int] = [0] * (2 * _NUM_POSITIONS)

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(self._counts)

    def observe(self, tree: TokenTree, accepted_nodes: IntArray) -> dict[str, tuple[int, int]]:
        """Counts one verified tree; `accepted_nodes` are the committed nodes of its path, anchor excluded.

        Bit s of `tree.sources` credits source number s of the constructor's names; a node of two sources credits
        both. Returns source name -> (attempted, accepted), for the sources that attempted anything.
        """
        accepted = set(accepted_nodes.tolist())
        parents = tree.parents.tolist()
        # Few nodes are reached, most of them siblings, so plain integers beat array operations here.
        reached = [node for node, parent in enumerate(parents) if parent == 0 or parent in accepted]
        depths, sources = tree.depths[reached].tolist(), tree.sources[reached].tolist()
        positions = self._positions
        for depth in set(depths):
            positions[min(depth, _NUM_POSITIONS) - 1] += 1
        for node, depth in zip(reached, depths, strict=True):
            if node in accepted:
                positions[_NUM_POSITIONS + min(depth, _NUM_POSITIONS) - 1] += 1
        credited: dict[str, tuple[int, int]] = {}
        for number, (name, counts) in enumerate(self._counts.items()):
            siblings: dict[int, int] = {}
            num_attempted = num_accepted = 0
            for node, depth, bits in zip(reached, depths, sources, strict=True):
                if bits >> number & 1:
                    parent = parents[node]
                    rank = siblings.get(parent, 0)
                    siblings[parent] = rank + 1
                    place = _DEPTH_PLACES[min(depth, DEPTH_EDGES[-1])] + _RANK_PLACES[min(rank, RANK_EDGES[-1])]
                    counts[place] += 1
                    num_attempted += 1
                    if node in accepted:
                        counts[_SIZE + place] += 1
                        num_accepted += 1
            if num_attempted:
                credited[name] = (num_attempted, num_accepted)
        return credited

    def totals(self) -> dict[str, tuple[int, int]]:
        """Source name -> (attempted, accepted)."""
        return {name: (sum(counts[:_SIZE]), sum(counts[_SIZE:])) for name, counts in self._counts.items()}

    def counts(self, source_name: str) -> CountArray:
        """[2, num_depth_buckets, num_rank_buckets] int64: attempted and accepted of one source, a copy."""
        return np.asarray(self._counts[source_name], dtype=np.int64).reshape(_SHAPE)

    def accepted_per_position(self) -> CountArray:
        """[num_positions] int64: accepted tokens at each place of the draft, a copy."""
        return np.asarray(self._positions[_NUM_POSITIONS:], dtype=np.int64)

    def attempted_per_position(self) -> CountArray:
        """[num_positions] int64: steps that reached a node at each place of the draft, a copy."""
        return np.asarray(self._positions[:_NUM_POSITIONS], dtype=np.int64)

    def merge_max(self, other: "AcceptanceTable") -> "AcceptanceTable":
        """Elementwise maximum: two reports of one incarnation, of which the larger is the later."""
        return self._merged(other, max)

    def add(self, other: "AcceptanceTable") -> "AcceptanceTable":
        """Elementwise sum: reports of two incarnations."""
        return self._merged(other, int.__add__)

    def copy(self) -> "AcceptanceTable":
        return self.add(AcceptanceTable())

    def snapshot(self) -> dict[str, Any]:
        """JSON-able; `from_snapshot` gives the table back."""
        return {
            "depth_edges": list(DEPTH_EDGES),
            "rank_edges": list(RANK_EDGES),
            "positions": np.asarray(self._positions).reshape(2, -1).tolist(),
            "sources": {name: self.counts(name).tolist() for name in self._counts},
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> "AcceptanceTable":
        """Raises InvalidSnapshotError if it is not a snapshot of a table with these buckets."""
        for field, edges in (("depth_edges", DEPTH_EDGES), ("rank_edges", RANK_EDGES)):
            if snapshot.get(field) != list(edges):
                raise InvalidSnapshotError(f"{field} must be {list(edges)}, not {snapshot.get(field)}")
        table = cls()
        table._positions = _counts_from(snapshot.get("positions"), "positions", (2, _NUM_POSITIONS)).ravel().tolist()
        sources = snapshot.get("sources")
        if not isinstance(sources, Mapping):
            raise InvalidSnapshotError(f"sources must map names to counts, not {type(sources).__name__}")
        table._counts = {
            str(name): _counts_from(counts, f"sources.{name}", _SHAPE).ravel().tolist()
            for name, counts in sources.items()
        }
        return table

    def __eq__(self, other: object) -> bool:
        """Equal counts; a source without counts is as good as none."""
        return isinstance(other, AcceptanceTable) and self._comparable() == other._comparable()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AcceptanceTable({self.totals()})"

    def _comparable(self) -> tuple[list[int], dict[str, list[int]]]:
        return self._positions, {name: counts for name, counts in self._counts.items() if any(counts)}

    def _merged(self, other: "AcceptanceTable", combine: Callable[[int, int], int]) -> "AcceptanceTable":
        merged = AcceptanceTable()
        merged._positions = list(map(combine, self._positions, other._positions))
        nothing = [0] * (2 * _SIZE)
        for name in dict.fromkeys((*self._counts, *other._counts)):
            both = self._counts.get(name, nothing), other._counts.get(name, nothing)
            merged._counts[name] = list(map(combine, *both))
        return merged


def _counts_from(value: Any, field: str, shape: tuple[int, ...]) -> CountArray:
    try:
        counts = np.asarray(value)
    except ValueError as error:
        raise InvalidSnapshotError(f"{field} must be an array of shape {shape}: {error}") from error
    if counts.dtype.kind not in "iu" or counts.shape != shape or (counts < 0).any():
        raise InvalidSnapshotError(
            f"{field} must be counts of shape {shape}, none negative, not {counts.dtype} of shape {counts.shape}"
        )
    return counts.astype(np.int64)
