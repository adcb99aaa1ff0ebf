"""Drafts copied from a request's own text: what followed earlier occurrences of its last tokens.

Keeps the committed tokens of each request and an n-gram index of them, extended as tokens commit. Knows nothing of
other requests, and nothing survives the end of one.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, RequestStates

__all__ = ["NGRAM_LENGTHS", "ContextMatch", "ContextMatcher"]

# Longest first (paper): the n-grams that `match` looks for.
NGRAM_LENGTHS = (5, 4, 3)
# Shorter ones say something of the next token, but nothing worth copying.
_SHORT_LENGTHS = (2, 1)


@dataclass(frozen=True, slots=True)
class ContextMatch:
    """The continuation of the earliest occurrence of the longest n-gram that occurs before.

    `num_occurrences` 0 means that nothing matched; `token_ids` may be empty even so if a stop token follows the match.
    """

    token_ids: list[int]
    # n of the n-gram that matched
    length: int
    num_occurrences: int
    # at least two occurrences, and the token after each is the same
    unanimous: bool
    # a stop token ended the continuation
    cropped: bool


_NO_MATCH = ContextMatch([], 0, 0, False, False)


class _NgramIndex:
    """Occurrences of the n-grams of one length. A position stands for the n-gram that ends just before it.

    Each position knows the occurrence before it and what holds for all occurrences up to it, so that a new one costs
    O(1) and a query needs only the latest.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.latest: dict[tuple[int, ...], int] = {}
        # [num_tokens] each, indexed by position; -1 for the first occurrence
        self.previous = array("q")
        self.earliest = array("q")
        self.count = array("q")
        # 1 while the same token has followed every occurrence
        self.unanimous = array("b")

    def extend(self, tokens: list[int]) -> None:
        """Indexes the n-grams that have a token after them in `tokens` and were not indexed yet."""
        for position in range(len(self.previous), len(tokens)):
            before, earliest, count, unanimous = -1, position, 1, 1
            if position >= self.length:
                key = tuple(tokens[position - self.length : position])
                before = self.latest.get(key, -1)
                if before >= 0:
                    earliest = self.earliest[before]
                    count = self.count[before] + 1
                    unanimous = self.unanimous[before] and tokens[before] == tokens[position]
                self.latest[key] = position
            self.previous.append(before)
            self.earliest.append(earliest)
            self.count.append(count)
            self.unanimous.append(unanimous)


class _Text:
    """The committed tokens of one request, indexed."""

    def __init__(self, tokens: list[int], stop_token_ids: frozenset[int]) -> None:
        self.tokens = tokens
        self.stop_token_ids = stop_token_ids
        self.indices = [_NgramIndex(length) for length in NGRAM_LENGTHS]
        self.all_indices = [*self.indices, *(_NgramIndex(length) for length in _SHORT_LENGTHS)]
        self.extend(())

    def extend(self, committed: Sequence[int]) -> None:
        self.tokens.extend(committed)
        for index in self.all_indices:
            index.extend(self.tokens)

    def find(self, draft_ids: Sequence[int], indices: Sequence[_NgramIndex]) -> tuple[_NgramIndex, int] | None:
        """The first index whose n-gram at the end of the draft occurs in the text, and its latest position."""
        longest = NGRAM_LENGTHS[0]
        tail = [*self.tokens[-longest:], *draft_ids[-longest:]][-longest:]
        for index in indices:
            if len(tail) >= index.length:
                latest = index.latest.get(tuple(tail[len(tail) - index.length :]))
                if latest is not None:
                    return index, latest
        return None

    def continuation(self, position: int, max_tokens: int) -> tuple[list[int], bool]:
        """Up to `max_tokens` tokens from `position` on, ending before a stop token, and whether one was met."""
        tokens = self.tokens[position : position + max_tokens]
        if not self.stop_token_ids.isdisjoint(tokens):
            first = next(i for i, token in enumerate(tokens) if token in self.stop_token_ids)
            return tokens[:first], True
        return tokens, False


class ContextMatcher:
    """The n-gram source. A draft ends before a stop token: it would gain nothing, the bonus token brings it as well."""

    name = "context"
    harvest_k = 0

    def __init__(self, *, max_occurrences: int = 32) -> None:
        self._max_occurrences = max_occurrences
        self._texts = RequestStates[_Text](f"source {self.name!r}")

    def start_request(self, request: DraftRequest) -> None:
        self._texts.start(request.request_id, _Text(request.prompt_ids.tolist(), request.stop_token_ids))

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        for outcome in outcomes:
            self._texts[outcome.request_id].extend(outcome.committed_ids.tolist())

    def stop_request(self, request_id: str) -> None:
        self._texts.stop(request_id)

    def match(self, request_id: str, draft_ids: Sequence[int] = (), *, max_tokens: int) -> ContextMatch:
        """Matches the end of `draft_ids`, drafted behind the committed tokens, in the committed tokens alone."""
        text = self._texts[request_id]
        found = text.find(draft_ids, text.indices)
        if found is None:
            return _NO_MATCH
        index, latest = found
        token_ids, cropped = text.continuation(index.earliest[latest], max_tokens)
        count = index.count[latest]
        return ContextMatch(token_ids, index.length, count, count >= 2 and bool(index.unanimous[latest]), cropped)

    def followers(self, request_id: str, draft_ids: Sequence[int] = ()) -> dict[int, int]:
        """Tokens that followed the latest occurrences of the longest n-gram at the end of `draft_ids`, and how often.

        The token that followed last comes first. Stop tokens are counted like others.
        """
        text = self._texts[request_id]
        counts: dict[int, int] = {}
        found = text.find(draft_ids, text.all_indices)
        if found is None:
            return counts
        index, position = found
        for _ in range(self._max_occurrences):
            if position < 0:
                break
            token = text.tokens[position]
            counts[token] = counts.get(token, 0) + 1
            position = index.previous[position]
        return counts
