"""How often each source's draft nodes are accepted: counts over reached nodes, mergeable across replicas.

A node behind a rejection was never tried, so only *reached* nodes count as attempts: their parent was accepted or is
the anchor. Knows nothing of how trees are built or who merges the tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.attempts import DEPTH_EDGES, NUM_POSITIONS, RANK_EDGES, count_attempts
from goose.errors import InvalidSnapshotError
from goose.tree import IntArray, TokenTree

__all__ = ["DEPTH_EDGES", "RANK_EDGES", "AcceptanceTable"]

CountArray = NDArray[np.int64]

_ATTEMPTED, _ACCEPTED = 0, 1
_SHAPE = (2, len(DEPTH_EDGES), len(RANK_EDGES))


class AcceptanceTable:
    """Counts of attempts and accepts by source, depth and rank among the siblings of the same source.

    Cumulative: counts only grow, so reports of one incarnation merge by maximum and those of different incarnations
    by addition, whatever their order.
    """

    def __init__(self, source_names: Sequence[str] = ()) -> None:
        # source -> [2, num_depth_buckets, num_rank_buckets]: attempted, accepted
        self._counts: dict[str, CountArray] = {name: np.zeros(_SHAPE, np.int64) for name in source_names}
        # [2, num_positions]: attempted, accepted tokens at depth position + 1 of the verified path
        self._positions: CountArray = np.zeros((2, NUM_POSITIONS), np.int64)

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
        attempts = count_attempts(trees, accepted_nodes, len(self._counts))
        self._positions += attempts.by_position
        for counts, added in zip(self._counts.values(), attempts.by_source, strict=True):
            counts += added
        return [
            {
                name: (attempted, accepted)
                for name, (attempted, accepted) in zip(self._counts, by_source, strict=True)
                if attempted
            }
            for by_source in attempts.by_tree.tolist()
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
        table._positions = _counts_from(snapshot.get("positions"), "positions", (2, NUM_POSITIONS))
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
        self._positions = numbers[: 2 * NUM_POSITIONS].reshape(2, NUM_POSITIONS)
        by_source = numbers[2 * NUM_POSITIONS :].reshape(len(names), *_SHAPE)
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
