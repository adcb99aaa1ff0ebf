"""Drafts from what the target itself found likely: the top-K successors of a token, and of a pair of tokens.

Rows are harvested from every position of every forward and stay warm across requests, but are only shown to requests of
the cache salt they come from. Knows nothing of any one request but its salt and its last two tokens. Memory is bounded:
one row a vocabulary entry for the requests without a salt, and a fixed number of rows for pairs and for salts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, RequestStates
from goose.sources.successor_rows import KeyedRows, SuccessorRows, last_of_each
from goose.tree import IntArray

__all__ = ["TransitionTable"]


@dataclass(slots=True)
class _Request:
    # the last two committed tokens, -1 where there is none
    last_two: tuple[int, int]
    cache_salt: str | None


class TransitionTable:
    """Two tiers of rows; the pair tier is asked first. In both a later row replaces an earlier one.

    The pair tier holds `max_pairs` rows and evicts the pair that entered first; as many rows are kept of the tokens of
    salted requests. Rows of a harvest that does not say where they stand count as those of requests without a salt;
    rows of a request that this table does not serve are left out, because their salt is not known.
    """

    name = "transitions"

    def __init__(self, *, num_successors: int = 10, max_pairs: int = 65536) -> None:
        self._num_successors = num_successors
        # by token
        self._tokens = SuccessorRows(num_successors)
        # by (salt, token)
        self._salted_tokens = KeyedRows(num_successors, max_rows=max_pairs)
        # by pair, or (salt, pair)
        self._pairs = KeyedRows(num_successors, max_rows=max_pairs)
        self._requests = RequestStates[_Request](f"source {self.name!r}")

    @property
    def harvest_k(self) -> int:
        return self._num_successors

    @property
    def num_pairs(self) -> int:
        return len(self._pairs)

    @property
    def num_bytes(self) -> dict[str, int]:
        """Bytes of the rows of each tier."""
        return {
            "tokens": self._tokens.num_bytes,
            "salted_tokens": self._salted_tokens.num_bytes,
            "pairs": self._pairs.num_bytes,
        }

    def start_request(self, request: DraftRequest) -> None:
        last_two = _last_two((-1, -1), request.prompt_ids)
        self._requests.start(request.request_id, _Request(last_two, request.cache_salt))

    def stop_request(self, request_id: str) -> None:
        self._requests.stop(request_id)

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        for outcome in outcomes:
            request = self._requests[outcome.request_id]
            request.last_two = _last_two(request.last_two, outcome.committed_ids)
        if harvest is None or not len(harvest.token_ids):
            return
        if harvest.origin is None:
            self._learn(harvest, np.arange(len(harvest.token_ids)), None)
            return
        rows_of: dict[str | None, list[int]] = {}
        for number, request_id in enumerate(harvest.origin.request_ids):
            if request_id in self._requests:
                rows_of.setdefault(self._requests[request_id].cache_salt, []).append(number)
        for salt, numbers in rows_of.items():
            self._learn(harvest, np.flatnonzero(np.isin(harvest.origin.requests, numbers)), salt)

    def last_two(self, request_id: str) -> tuple[int, int]:
        """The last two committed tokens of a request; -1 where there is none."""
        return self._requests[request_id].last_two

    def knows(self, previous_id: int, token_id: int, *, cache_salt: str | None = None) -> bool:
        """Whether either tier has a row for the token."""
        if _pair_key(previous_id, token_id, cache_salt) in self._pairs:
            return True
        return token_id in self._tokens if cache_salt is None else (cache_salt, token_id) in self._salted_tokens

    def successors(
        self, previous_id: int, token_id: int, *, cache_salt: str | None = None
    ) -> tuple[list[int], list[float]]:
        """Successors of one token after another (-1: none known), most likely first, and their scores."""
        found = self._pairs.read(_pair_key(previous_id, token_id, cache_salt))
        if found is not None:
            return found
        if cache_salt is None:
            return self._tokens.read(token_id)
        return self._salted_tokens.read((cache_salt, token_id)) or ([], [])

    def _learn(self, harvest: Harvest, rows: IntArray, salt: str | None) -> None:
        """Keeps some rows of a harvest, ascending, as those of a salt."""
        width = min(harvest.top_ids.shape[1], self._num_successors)
        ids = np.full((len(rows), self._num_successors), -1, dtype=np.int32)
        scores = np.zeros(ids.shape, dtype=np.float64)
        ids[:, :width] = harvest.top_ids[rows, :width]
        scores[:, :width] = harvest.top_probs[rows, :width]
        token_ids, previous_ids = harvest.token_ids[rows], harvest.previous_ids[rows]

        latest = last_of_each(token_ids)
        if salt is None:
            self._tokens.write(token_ids[latest], ids[latest], scores[latest])
        else:
            keys = [(salt, token_id) for token_id in token_ids[latest].tolist()]
            self._salted_tokens.write(keys, ids[latest], scores[latest])

        paired = np.flatnonzero(previous_ids >= 0)
        pairs = (previous_ids[paired] << 32) | token_ids[paired]
        latest = last_of_each(pairs)
        pair_keys = pairs[latest].tolist()
        kept = paired[latest]
        self._pairs.write(pair_keys if salt is None else [(salt, pair) for pair in pair_keys], ids[kept], scores[kept])


def _pair_key(previous_id: int, token_id: int, salt: str | None) -> int | tuple[str, int]:
    """Negative, and so the key of no pair, if there is no token before."""
    pair = previous_id << 32 | token_id
    return pair if salt is None else (salt, pair)


def _last_two(last: tuple[int, int], more: IntArray) -> tuple[int, int]:
    """The last two of two known tokens and those behind them."""
    if len(more) >= 2:
        return int(more[-2]), int(more[-1])
    return (last[1], int(more[0])) if len(more) else last
