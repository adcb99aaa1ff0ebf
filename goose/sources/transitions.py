"""Drafts from what the target itself found likely: the top-K successors of a token, and of a pair of tokens.

Rows are harvested from every position of every forward and stay warm across requests. Knows nothing of any one
request but its last two tokens. Memory is bounded: one row a vocabulary entry, and a fixed number of pairs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from goose.errors import RequestStateError
from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest
from goose.sources.base import CandidateQuery, Candidates
from goose.tree import IntArray

__all__ = ["TransitionTable"]


class TransitionTable:
    """Two tiers of rows; the pair tier is asked first. In both a later row replaces an earlier one.

    The pair tier holds `max_pairs` rows and evicts the pair that entered first.
    """

    name = "transitions"
    feature_names = ("rank", "from_pair")

    def __init__(self, *, num_successors: int = 10, max_pairs: int = 65536) -> None:
        # Scores are kept in double precision: widths are rounded products of them, and must come out the same whether a
        # score was given in single or in double.
        self._num_successors = num_successors
        self._max_pairs = max_pairs
        # unigram tier, indexed by token; grows to the largest token seen. -1: no successor
        # [num_tokens, num_successors]
        self._token_ids = np.full((0, num_successors), -1, dtype=np.int32)
        self._token_scores = np.zeros((0, num_successors), dtype=np.float64)
        # pair tier, indexed by slot
        # [max_pairs, num_successors], allocated as it fills
        self._pair_ids = np.full((0, num_successors), -1, dtype=np.int32)
        self._pair_scores = np.zeros((0, num_successors), dtype=np.float64)
        self._pair_slots: dict[int, int] = {}
        self._slot_pairs: list[int] = []
        self._next_slot = 0
        self._last_two: dict[str, tuple[int, int]] = {}
        self._stop_token_ids: dict[str, frozenset[int]] = {}

    @property
    def harvest_k(self) -> int:
        return self._num_successors

    @property
    def num_pairs(self) -> int:
        return len(self._pair_slots)

    def start_request(self, request: DraftRequest) -> None:
        if request.request_id in self._last_two:
            raise RequestStateError(f"request {request.request_id!r} was started already in source {self.name!r}")
        self._last_two[request.request_id] = _last_two((-1, -1), request.prompt_ids)
        self._stop_token_ids[request.request_id] = request.stop_token_ids

    def stop_request(self, request_id: str) -> None:
        self._require(request_id)
        del self._last_two[request_id], self._stop_token_ids[request_id]

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        for outcome in outcomes:
            last = self._require(outcome.request_id)
            self._last_two[outcome.request_id] = _last_two(last, outcome.committed_ids)
        if harvest is not None and len(harvest.token_ids):
            self._learn(harvest)

    def last_two(self, request_id: str) -> tuple[int, int]:
        """The last two committed tokens of a request; -1 where there is none."""
        return self._require(request_id)

    def knows(self, previous_id: int, token_id: int) -> bool:
        """Whether either tier has a row for the token."""
        if token_id < len(self._token_ids) and self._token_ids[token_id, 0] >= 0:
            return True
        return _pair_key(previous_id, token_id) in self._pair_slots

    def successors(self, previous_id: int, token_id: int) -> tuple[list[int], list[float]]:
        """Successors of one token after another (-1: none known), most likely first, and their scores."""
        slot = self._pair_slots.get(_pair_key(previous_id, token_id), -1) if previous_id >= 0 else -1
        if slot >= 0:
            ids, scores = self._pair_ids[slot], self._pair_scores[slot]
        elif token_id < len(self._token_ids):
            ids, scores = self._token_ids[token_id], self._token_scores[token_id]
        else:
            return [], []
        tokens: list[int] = ids.tolist()
        if tokens[-1] < 0:
            tokens = tokens[: tokens.index(-1)]
        return tokens, scores.tolist()[: len(tokens)]

    def candidates(self, queries: Sequence[CandidateQuery]) -> Candidates:
        """One level: the successors of each node asked about, without the request's stop tokens.

        Features: rank among the successors (0 is the most likely), 1 if the pair tier answered.
        """
        rows: list[tuple[int, int, float, int, int]] = []
        for number, query in enumerate(queries):
            stop = self._stop_token_ids[query.request_id] if self._require(query.request_id) else frozenset()
            previous, token = _last_two(self._last_two[query.request_id], query.draft_ids)
            from_pair = int(previous >= 0 and _pair_key(previous, token) in self._pair_slots)
            if query.max_depth < 1:
                continue
            for rank, (successor, score) in enumerate(zip(*self.successors(previous, token), strict=True)):
                if successor not in stop:
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
        tokens = harvest.token_ids[rows]
        self._token_ids, self._token_scores = _grown(self._token_ids, self._token_scores, int(tokens.max()) + 1)
        self._token_ids[tokens], self._token_scores[tokens] = ids[rows], scores[rows]

        paired = np.flatnonzero(harvest.previous_ids >= 0)
        pairs = (harvest.previous_ids[paired] << 32) | harvest.token_ids[paired]
        rows = _last_of_each(pairs)[-self._max_pairs :]
        slots = self._claim_slots(pairs[rows].tolist())
        # A slot claimed late in the batch may have been another row's early in it: the later one holds it now.
        kept = _last_of_each(slots)
        needed = len(self._slot_pairs)
        self._pair_ids, self._pair_scores = _grown(self._pair_ids, self._pair_scores, needed, self._max_pairs)
        rows, slots = paired[rows[kept]], slots[kept]
        self._pair_ids[slots], self._pair_scores[slots] = ids[rows], scores[rows]

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

    def _require(self, request_id: str) -> tuple[int, int]:
        try:
            return self._last_two[request_id]
        except KeyError:
            raise RequestStateError(f"request {request_id!r} is not started in source {self.name!r}") from None


def _pair_key(previous_id: int, token_id: int) -> int:
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


def _grown(
    ids: NDArray[np.int32], scores: NDArray[np.float64], num_rows: int, limit: int | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Both arrays with at least `num_rows` rows; grows by doubling, so that a row costs O(1) in the long run."""
    if num_rows <= len(ids):
        return ids, scores
    capacity = max(num_rows, 2 * len(ids), 1024)
    capacity = min(capacity, limit) if limit is not None else capacity
    more = capacity - len(ids)
    width = ids.shape[1]
    return (
        np.concatenate([ids, np.full((more, width), -1, dtype=np.int32)]),
        np.concatenate([scores, np.zeros((more, width), dtype=np.float64)]),
    )
