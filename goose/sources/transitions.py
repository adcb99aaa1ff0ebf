"""Drafts from what the target itself found likely: the top-K successors of a token, and of a pair of tokens.

Rows are harvested from every position of every forward and stay warm across requests. Knows nothing of any one
request but its last two tokens. Memory is bounded: one row a vocabulary entry, and a fixed number of pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, RequestStates
from goose.sources.base import CandidateQuery, Candidates
from goose.tree import IntArray

__all__ = ["TransitionTable"]


class _Rows:
    """Rows of successors by number, for any number below `max_rows`. Grows by doubling, so a row costs O(1).

    Scores are kept in double precision: tree widths are rounded products of them, and must come out the same whether
    a score was given in single or in double.
    """

    def __init__(self, width: int, *, max_rows: int | None = None) -> None:
        self._max_rows = max_rows
        # [num_rows, width]: successors, most likely first; -1 behind the last one, and all along an empty row
        self._ids = np.full((0, width), -1, dtype=np.int32)
        # [num_rows, width]
        self._scores = np.zeros((0, width), dtype=np.float64)

    def __contains__(self, number: int) -> bool:
        return number < len(self._ids) and bool(self._ids[number, 0] >= 0)

    def read(self, number: int) -> tuple[list[int], list[float]]:
        if number not in self:
            return [], []
        ids: list[int] = self._ids[number].tolist()
        scores: list[float] = self._scores[number].tolist()
        if ids[-1] >= 0:
            return ids, scores
        length = ids.index(-1)
        return ids[:length], scores[:length]

    def write(self, numbers: IntArray, ids: NDArray[np.int32], scores: NDArray[np.float64]) -> None:
        """Replaces the rows of distinct `numbers`."""
        if not len(numbers):
            return
        needed = int(numbers.max()) + 1
        if needed > len(self._ids):
            capacity = max(needed, 2 * len(self._ids), 1024)
            more = (capacity if self._max_rows is None else min(capacity, self._max_rows)) - len(self._ids)
            width = self._ids.shape[1]
            self._ids = np.concatenate([self._ids, np.full((more, width), -1, dtype=np.int32)])
            self._scores = np.concatenate([self._scores, np.zeros((more, width), dtype=np.float64)])
        self._ids[numbers], self._scores[numbers] = ids, scores


@dataclass(slots=True)
class _Request:
    # the last two committed tokens, -1 where there is none
    last_two: tuple[int, int]
    stop_token_ids: frozenset[int]


class TransitionTable:
    """Two tiers of rows; the pair tier is asked first. In both a later row replaces an earlier one.

    The pair tier holds `max_pairs` rows and evicts the pair that entered first.
    """

    name = "transitions"
    feature_names = ("rank", "from_pair")

    def __init__(self, *, num_successors: int = 10, max_pairs: int = 65536) -> None:
        self._num_successors = num_successors
        self._max_pairs = max_pairs
        # by token; as long as the largest token seen
        self._tokens = _Rows(num_successors)
        # by slot
        self._pairs = _Rows(num_successors, max_rows=max_pairs)
        self._pair_slots: dict[int, int] = {}
        self._slot_pairs: list[int] = []
        self._next_slot = 0
        self._requests = RequestStates[_Request](f"source {self.name!r}")

    @property
    def harvest_k(self) -> int:
        return self._num_successors

    @property
    def num_pairs(self) -> int:
        return len(self._pair_slots)

    def start_request(self, request: DraftRequest) -> None:
        last_two = _last_two((-1, -1), request.prompt_ids)
        self._requests.start(request.request_id, _Request(last_two, request.stop_token_ids))

    def stop_request(self, request_id: str) -> None:
        self._requests.stop(request_id)

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        for outcome in outcomes:
            request = self._requests[outcome.request_id]
            request.last_two = _last_two(request.last_two, outcome.committed_ids)
        if harvest is not None and len(harvest.token_ids):
            self._learn(harvest)

    def last_two(self, request_id: str) -> tuple[int, int]:
        """The last two committed tokens of a request; -1 where there is none."""
        return self._requests[request_id].last_two

    def knows(self, previous_id: int, token_id: int) -> bool:
        """Whether either tier has a row for the token."""
        return token_id in self._tokens or _pair_key(previous_id, token_id) in self._pair_slots

    def successors(self, previous_id: int, token_id: int) -> tuple[list[int], list[float]]:
        """Successors of one token after another (-1: none known), most likely first, and their scores."""
        slot = self._pair_slots.get(_pair_key(previous_id, token_id))
        return self._tokens.read(token_id) if slot is None else self._pairs.read(slot)

    def candidates(self, queries: Sequence[CandidateQuery]) -> Candidates:
        """One level: the successors of each node asked about, without the request's stop tokens.

        Features: rank among the successors (0 is the most likely), 1 if the pair tier answered.
        """
        rows: list[tuple[int, int, float, int, int]] = []
        for number, query in enumerate(queries):
            request = self._requests[query.request_id]
            if query.max_depth < 1:
                continue
            previous, token = _last_two(request.last_two, query.draft_ids)
            from_pair = int(_pair_key(previous, token) in self._pair_slots)
            for rank, (successor, score) in enumerate(zip(*self.successors(previous, token), strict=True)):
                if successor not in request.stop_token_ids:
                    rows.append((number, successor, score, rank, from_pair))
        table = np.asarray(rows, dtype=np.float64).reshape(-1, 5)
        return Candidates(
            queries=table[:, 0].astype(np.int64),
            token_ids=table[:, 1].astype(np.int64),
            parents=np.full(len(rows), -1, dtype=np.int64),
            scores=table[:, 2].astype(np.float32),
            features=table[:, 3:].astype(np.float32),
        )

    def _learn(self, harvest: Harvest) -> None:
        width = min(harvest.top_ids.shape[1], self._num_successors)
        ids = np.full((len(harvest.token_ids), self._num_successors), -1, dtype=np.int32)
        scores = np.zeros(ids.shape, dtype=np.float64)
        ids[:, :width] = harvest.top_ids[:, :width]
        scores[:, :width] = harvest.top_probs[:, :width]

        rows = _last_of_each(harvest.token_ids)
        self._tokens.write(harvest.token_ids[rows], ids[rows], scores[rows])

        paired = np.flatnonzero(harvest.previous_ids >= 0)
        pairs = (harvest.previous_ids[paired] << 32) | harvest.token_ids[paired]
        latest = _last_of_each(pairs)[-self._max_pairs :]
        slots = self._claim_slots(pairs[latest].tolist())
        # A slot claimed late in the batch may have been another row's early in it: the later one holds it now.
        kept = _last_of_each(slots)
        rows = paired[latest[kept]]
        self._pairs.write(slots[kept], ids[rows], scores[rows])

    def _claim_slots(self, pairs: list[int]) -> IntArray:
        """The slot of each pair; a new pair takes a free one, or that of the pair that entered first."""
        slots = np.empty(len(pairs), dtype=np.int64)
        for row, pair in enumerate(pairs):
            slot = self._pair_slots.get(pair)
            if slot is None:
                slot = self._next_slot
                self._next_slot = (slot + 1) % self._max_pairs
                if slot < len(self._slot_pairs):
                    del self._pair_slots[self._slot_pairs[slot]]
                    self._slot_pairs[slot] = pair
                else:
                    self._slot_pairs.append(pair)
                self._pair_slots[pair] = slot
            slots[row] = slot
        return slots


def _pair_key(previous_id: int, token_id: int) -> int:
    """Negative, and so the key of no pair, if there is no token before."""
    return previous_id << 32 | token_id


def _last_two(last: tuple[int, int], more: IntArray) -> tuple[int, int]:
    """The last two of two known tokens and those behind them."""
    if len(more) >= 2:
        return int(more[-2]), int(more[-1])
    return (last[1], int(more[0])) if len(more) else last


def _last_of_each(keys: IntArray) -> IntArray:
    """Ascending indices of the last entry of each distinct key."""
    _, first_reversed = np.unique(keys[::-1], return_index=True)
    return np.sort(len(keys) - 1 - first_reversed)
