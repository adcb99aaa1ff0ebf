"""Drafts from past outputs of the replica: what followed the end of a text wherever else it was written.

The idea is SuffixDecoding's (arXiv 2411.04975): one structure over the outputs of all requests and one for each request
over its own prompt and output, both matched with the longest and with shorter ends of the text, what followed counted.
Theirs is a tree of suffixes, ours chains of occurrences with the latest of them read and counted when asked: the same
fractions of a recent sample, at a fraction of a tree's memory. Knows nothing of how long a draft should be.

Outputs enter as their tokens commit, and leave whole, first in, first out, when there are more than `max_tokens`.
Requests with different cache salts share nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, RequestStates
from goose.sources.continuations import CountedTrie
from goose.sources.text_index import INDEXED_LENGTHS, TextIndex
from goose.tree import IntArray

__all__ = ["DEFAULT_POOL_TOKENS", "MAX_MATCH_LENGTH", "SuffixMatch", "SuffixPool"]

# Of past outputs, at up to half a kilobyte each.
DEFAULT_POOL_TOKENS = 65536
# Tokens compared to tell how long a match is.
MAX_MATCH_LENGTH = 64
# Latest occurrences of a pattern that are read and counted.
_MAX_OCCURRENCES = 128


@dataclass(frozen=True, slots=True, eq=False)
class SuffixMatch:
    """The latest occurrences of a pattern, which is the end of a text."""

    # tokens of the pattern; no longer pattern has the same occurrences
    length: int
    # latest first, each `text << 32 | offset` of the token behind the pattern
    positions: Sequence[int]


@dataclass(slots=True)
class _Request:
    own: TextIndex
    own_text: int
    salt: str | None
    # number of the output in the salt's pool; None: evicted already
    pooled_text: int | None
    stop_token_ids: IntArray


class SuffixPool:
    """`own_matches` and `pooled_matches` find patterns, `continuations` counts what followed one.

    `max_tokens` bounds the outputs kept, those of live requests included. An output longer than that is not kept.
    """

    name = "pool"
    harvest_k = 0

    def __init__(self, *, max_tokens: int = DEFAULT_POOL_TOKENS, max_occurrences: int = _MAX_OCCURRENCES) -> None:
        if max_tokens < 0:
            raise ValueError(f"max_tokens must be at least 0, not {max_tokens}")
        self._max_tokens = max_tokens
        self._max_occurrences = max_occurrences
        self._pools: dict[str | None, TextIndex] = {}
        # (salt, text) -> None, those that started first first
        self._outputs: OrderedDict[tuple[str | None, int], None] = OrderedDict()
        self._requests = RequestStates[_Request](f"source {self.name!r}")
        self.num_tokens = 0

    @property
    def num_outputs(self) -> int:
        """Outputs kept, those of live requests included."""
        return len(self._outputs)

    def start_request(self, request: DraftRequest) -> None:
        self._requests.require_new(request.request_id)
        own = TextIndex()
        own_text = own.add()
        own.extend(own_text, request.prompt_ids)
        pooled_text = self._pools.setdefault(request.cache_salt, TextIndex()).add()
        self._outputs[request.cache_salt, pooled_text] = None
        stop = np.asarray(sorted(request.stop_token_ids), dtype=np.int64)
        self._requests.start(request.request_id, _Request(own, own_text, request.cache_salt, pooled_text, stop))

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        for outcome in outcomes:
            request = self._requests[outcome.request_id]
            request.own.extend(request.own_text, outcome.committed_ids)
            if request.pooled_text is not None:
                self._pools[request.salt].extend(request.pooled_text, outcome.committed_ids)
                self.num_tokens += len(outcome.committed_ids)
        while self.num_tokens > self._max_tokens:
            self._evict(*next(iter(self._outputs)))

    def stop_request(self, request_id: str) -> None:
        """Forgets the prompt; the output stays for others."""
        request = self._requests.stop(request_id)
        if request.pooled_text is not None and not self._pools[request.salt].length(request.pooled_text):
            self._evict(request.salt, request.pooled_text)

    def own_matches(self, request_id: str, draft_ids: Sequence[int] = ()) -> Iterator[SuffixMatch]:
        """Patterns found in the request's own prompt and output, longest first.

        A pattern ends with the committed tokens and `draft_ids` behind them.
        """
        request = self._requests[request_id]
        return self._matches(request.own, self._end(request, draft_ids))

    def pooled_matches(self, request_id: str, draft_ids: Sequence[int] = ()) -> Iterator[SuffixMatch]:
        """Patterns found in the outputs kept for the request's salt, its own output so far among them."""
        request = self._requests[request_id]
        pool = self._pools.get(request.salt)
        return iter(()) if pool is None else self._matches(pool, self._end(request, draft_ids))

    def own_continuations(self, request_id: str, match: SuffixMatch, depth: int) -> CountedTrie:
        """What followed a match of `own_matches`, `depth >= 1` tokens of it, ending before a stop token."""
        request = self._requests[request_id]
        return _continuations(request.own, match, depth, request.stop_token_ids)

    def pooled_continuations(self, request_id: str, match: SuffixMatch, depth: int) -> CountedTrie:
        """What followed a match of `pooled_matches`."""
        request = self._requests[request_id]
        return _continuations(self._pools[request.salt], match, depth, request.stop_token_ids)

    def check_integrity(self) -> None:
        """Counts everything again, for tests. Raises RuntimeError naming what is wrong."""
        for salt, pool in self._pools.items():
            pool.check_integrity()
            if pool.num_texts != sum(owner == salt for owner, _ in self._outputs):
                raise RuntimeError(f"the pool of salt {salt!r} holds other outputs than are queued for eviction")
            if not pool.num_texts:
                raise RuntimeError(f"the pool of salt {salt!r} is empty and was not dropped")
        if {salt for salt, _ in self._outputs} != self._pools.keys():
            raise RuntimeError("outputs are queued of other salts than have pools")
        if self.num_tokens != sum(pool.num_tokens for pool in self._pools.values()):
            raise RuntimeError(f"num_tokens is {self.num_tokens}, not what the pools hold")
        for request in self._requests:
            request.own.check_integrity()

    def _evict(self, salt: str | None, text: int) -> None:
        pool = self._pools[salt]
        self.num_tokens -= pool.length(text)
        pool.remove(text)
        del self._outputs[salt, text]
        for request in self._requests:
            if request.salt == salt and request.pooled_text == text:
                request.pooled_text = None
        if not pool.num_texts:
            del self._pools[salt]

    def _end(self, request: _Request, draft_ids: Sequence[int]) -> list[int]:
        return [*request.own.tail(request.own_text, MAX_MATCH_LENGTH), *draft_ids][-MAX_MATCH_LENGTH:]

    def _matches(self, index: TextIndex, end: list[int]) -> Iterator[SuffixMatch]:
        longest = len(end)
        for which, shortest in enumerate(INDEXED_LENGTHS):
            found: list[tuple[int, int]] = []
            for position in index.occurrences(end, which):
                found.append((min(longest, _common_end(index.behind(position, longest).tolist(), end)), position))
                if len(found) == self._max_occurrences:
                    break
            for length in sorted({length for length, _ in found}, reverse=True):
                yield SuffixMatch(length, [position for matched, position in found if matched >= length])
            # Shorter patterns have occurrences of their own, which are found below a shorter n-gram.
            longest = min(longest, shortest - 1)


def _common_end(first: list[int], second: list[int]) -> int:
    """How many tokens at the end of both are the same."""
    shared = 0
    for mine, other in zip(reversed(first), reversed(second), strict=False):
        if mine != other:
            break
        shared += 1
    return shared


def _continuations(index: TextIndex, match: SuffixMatch, depth: int, stop_token_ids: IntArray) -> CountedTrie:
    tokens = np.full((len(match.positions), depth), -1, dtype=np.int64)
    for row, position in enumerate(match.positions):
        ahead = index.ahead(position, depth)
        tokens[row, : len(ahead)] = ahead
    if len(stop_token_ids):
        stopped = np.logical_or.accumulate(np.isin(tokens, stop_token_ids), axis=1)
        tokens[stopped] = -1
    return CountedTrie.of(tokens)
