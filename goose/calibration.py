"""How often each source's draft nodes are accepted: counts over reached nodes, mergeable across replicas.

A node behind a rejection was never tried, so only *reached* nodes count as attempts: their parent was accepted or is
the anchor. Knows nothing of how trees are built or who merges the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.errors import InvalidSnapshotError
from goose.tree import BoolArray, IntArray, TokenTree

__all__ = ["DEPTH_EDGES", "RANK_EDGES", "AcceptanceTable"]

CountArray = NDArray[np.int64]

# First depth of each depth bucket and first rank of each rank bucket; the last bucket is open.
DEPTH_EDGES = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65)
RANK_EDGES = (0, 1, 2, 3, 5, 8)
# Accepted tokens by place in the draft; the last place also takes what lies behind it.
_NUM_POSITIONS = 128
_ATTEMPTED, _ACCEPTED = 0, 1
_SHAPE = (2, len(DEPTH_EDGES), len(RANK_EDGES))
# Buckets by depth and by rank; the last entry is that of all larger ones.
_DEPTH_BUCKETS = np.searchsorted(DEPTH_EDGES, np.arange(DEPTH_EDGES[-1] + 1), side="right") - 1
_RANK_BUCKETS = np.searchsorted(RANK_EDGES, np.arange(RANK_EDGES[-1] + 1), side="right") - 1
_DEPTH_RANKS = len(DEPTH_EDGES) * len(RANK_EDGES)


@dataclass(frozen=True, slots=True, eq=False)
class _Reached:
    """The draft nodes of a batch whose parent was accepted or is the anchor, in order; one entry each."""

    trees: IntArray
    # of the batch
    parents: IntArray
    depths: IntArray
    sources: IntArray
    accepted: BoolArray


class AcceptanceTable:
    """Counts of attempts and accepts by source, depth and rank among the siblings of the same source.

    Cumulative: counts only grow, so reports of one incarnation merge by maximum and those of different incarnations
    by addition, whatever their order.
    """

    def __init__(self, source_names: Sequence[str] = ()) -> None:
        # source -> [2, num_depth_buckets, num_rank_buckets]: attempted, accepted
        self._counts: dict[str, CountArray] = {name: np.zeros(_SHAPE, np.int64) for name in source_names}
        # [2, num_positions]: attempted, accepted tokens at depth position + 1 of the verified path
        self._positions: CountArray = np.zeros((2, _NUM_POSITIONS), np.int64)

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(self._counts)

    def observe(self, tree: TokenTree, accepted_nodes: IntArray) -> dict[str, tuple[int, int]]:
        """`observe_batch` for one tree."""
        return self.observe_batch([tree], [accepted_nodes])[0]

    def observe_batch(
        self, trees: Sequence[TokenTree], accepted_nodes: Sequence[IntArray]
    ) -> list[dict[str, tuple[int, int]]]:
        """Counts verified trees; `accepted_nodes[i]` are the committed nodes of tree i's path, anchor excluded.

        Bit s of `tree.sources` credits source number s of the constructor's names; a node of two sources credits
        both. Returns for each tree source name -> (attempted, accepted), for the sources that attempted anything.
        """
        if not trees:
            return []
        reached = _reached(trees, accepted_nodes)
        places = np.minimum(reached.depths, _NUM_POSITIONS) - 1
        # A tree tries a place once, by however many siblings.
        tried = np.zeros((len(trees), _NUM_POSITIONS), np.bool_)
        tried[reached.trees, places] = True
        self._positions[_ATTEMPTED] += tried.sum(axis=0)
        self._positions[_ACCEPTED] += np.bincount(places[reached.accepted], minlength=_NUM_POSITIONS)

        num_sources = len(self._counts)
        sources, nodes = (reached.sources & (1 << np.arange(num_sources))[:, None] != 0).nonzero()
        accepted = reached.accepted[nodes]
        depth_bucket = _DEPTH_BUCKETS[np.minimum(reached.depths[nodes], DEPTH_EDGES[-1])]
        # One parent has siblings in many sources; a source's own follow each other.
        rank = _ranks(sources * (int(reached.parents.max(initial=0)) + 1) + reached.parents[nodes])
        cell = depth_bucket * len(RANK_EDGES) + _RANK_BUCKETS[np.minimum(rank, RANK_EDGES[-1])]
        cell += sources * _DEPTH_RANKS
        attempts = np.bincount(cell, minlength=num_sources * _DEPTH_RANKS)
        accepts = np.bincount(cell[accepted], minlength=num_sources * _DEPTH_RANKS)
        added = np.stack([attempts, accepts]).reshape(2, num_sources, *_SHAPE[1:])
        for number, counts in enumerate(self._counts.values()):
            counts += added[:, number]

        owner = sources + num_sources * reached.trees[nodes]
        attempted_by = np.bincount(owner, minlength=num_sources * len(trees)).tolist()
        accepted_by = np.bincount(owner[accepted], minlength=num_sources * len(trees)).tolist()
        return [
            {
                name: (attempted_by[at], accepted_by[at])
                for at, name in enumerate(self._counts, tree * num_sources)
                if attempted_by[at]
            }
            for tree in range(len(trees))
        ]

    def totals(self) -> dict[str, tuple[int, int]]:
        """Source name -> (attempted, accepted)."""
        return {
            name: (int(counts[_ATTEMPTED].sum()), int(counts[_ACCEPTED].sum())) for name, counts in self._counts.items()
        }

    def counts(self, source_name: str) -> CountArray:
        """[2, num_depth_buckets, num_rank_buckets] int64: attempted and accepted of one source, a copy."""
        return self._counts[source_name].copy()

    def accepted_per_position(self) -> CountArray:
        """[num_positions] int64: accepted tokens at each place of the draft, a copy."""
        accepted: CountArray = self._positions[_ACCEPTED]
        return accepted.copy()

    def attempted_per_position(self) -> CountArray:
        """[num_positions] int64: steps that reached a node at each place of the draft, a copy."""
        attempted: CountArray = self._positions[_ATTEMPTED]
        return attempted.copy()

    def merge_max(self, other: "AcceptanceTable") -> "AcceptanceTable":
        """Elementwise maximum: two reports of one incarnation, of which the larger is the later."""
        return self._merged(other, np.maximum)

    def add(self, other: "AcceptanceTable") -> "AcceptanceTable":
        """Elementwise sum: reports of two incarnations."""
        return self._merged(other, np.add)

    def copy(self) -> "AcceptanceTable":
        return self.add(AcceptanceTable())

    def snapshot(self) -> dict[str, Any]:
        """JSON-able; `from_snapshot` gives the table back."""
        return {
            "depth_edges": list(DEPTH_EDGES),
            "rank_edges": list(RANK_EDGES),
            "positions": self._positions.tolist(),
            "sources": {name: counts.tolist() for name, counts in self._counts.items()},
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> "AcceptanceTable":
        """Raises InvalidSnapshotError if it is not a snapshot of a table with these buckets."""
        for field, edges in (("depth_edges", DEPTH_EDGES), ("rank_edges", RANK_EDGES)):
            if snapshot.get(field) != list(edges):
                raise InvalidSnapshotError(f"{field} must be {list(edges)}, not {snapshot.get(field)}")
        table = cls()
        table._positions = _counts_from(snapshot.get("positions"), "positions", (2, _NUM_POSITIONS))
        sources = snapshot.get("sources")
        if not isinstance(sources, Mapping):
            raise InvalidSnapshotError(f"sources must map names to counts, not {type(sources).__name__}")
        table._counts = {str(name): _counts_from(counts, f"sources.{name}", _SHAPE) for name, counts in sources.items()}
        return table

    def __getstate__(self) -> tuple[tuple[str, ...], bytes]:
        """The high bytes of all counts, then the next: most are zero, so that whatever compresses it does well."""
        numbers = np.concatenate([self._positions.ravel(), *(counts.ravel() for counts in self._counts.values())])
        return tuple(self._counts), numbers.view(np.uint8).reshape(-1, 8).T.tobytes()

    def __setstate__(self, state: tuple[tuple[str, ...], bytes]) -> None:
        names, planes = state
        numbers = np.frombuffer(planes, np.uint8).reshape(8, -1).T.copy().view(np.int64).ravel()
        self._positions = numbers[: 2 * _NUM_POSITIONS].reshape(2, _NUM_POSITIONS)
        by_source = numbers[2 * _NUM_POSITIONS :].reshape(len(names), *_SHAPE)
        self._counts = dict(zip(names, by_source, strict=True))

    def __eq__(self, other: object) -> bool:
        """Equal counts; a source without counts is as good as none."""
        return isinstance(other, AcceptanceTable) and self._comparable() == other._comparable()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AcceptanceTable({self.totals()})"

    def _comparable(self) -> tuple[bytes, dict[str, bytes]]:
        return self._positions.tobytes(), {n: counts.tobytes() for n, counts in self._counts.items() if counts.any()}

    def _merged(self, other: "AcceptanceTable", combine: np.ufunc) -> "AcceptanceTable":
        merged = AcceptanceTable()
        merged._positions = combine(self._positions, other._positions)
        nothing = np.zeros(_SHAPE, np.int64)
        for name in dict.fromkeys((*self._counts, *other._counts)):
            merged._counts[name] = combine(self._counts.get(name, nothing), other._counts.get(name, nothing))
        return merged


def _reached(trees: Sequence[TokenTree], accepted_nodes: Sequence[IntArray]) -> _Reached:
    sizes = np.array([len(tree.token_ids) for tree in trees])
    starts = np.cumsum(sizes) - sizes
    tree_of = np.repeat(np.arange(len(trees)), sizes)
    parents = np.concatenate([tree.parents for tree in trees]) + starts[tree_of]
    num_accepted = np.array([len(nodes) for nodes in accepted_nodes])
    accepted = np.zeros(len(parents), np.bool_)
    accepted[np.concatenate(accepted_nodes) + np.repeat(starts, num_accepted)] = True
    is_open = accepted.copy()
    is_open[starts] = True
    reached = is_open[parents]
    # An anchor has no parent: what stands there is another tree's node.
    reached[starts] = False
    nodes = np.flatnonzero(reached)
    return _Reached(
        trees=tree_of[nodes],
        parents=parents[nodes],
        depths=np.concatenate([tree.depths for tree in trees])[nodes],
        sources=np.concatenate([tree.sources for tree in trees])[nodes],
        accepted=accepted[nodes],
    )


def _ranks(groups: IntArray) -> IntArray:
    """How many earlier entries have the same number."""
    if groups.max(initial=0) < 1 << 15:
        # Short numbers are sorted by their digits, in a third of the time.
        groups = groups.astype(np.int16)
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    places = np.arange(len(groups))
    starts = np.zeros(len(groups), np.int64)
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    starts[changes] = changes
    np.maximum.accumulate(starts, out=starts)
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = places - starts
    return ranks


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
