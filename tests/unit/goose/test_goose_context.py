"""The n-gram source: which occurrence is copied, how far, and what a stop token does to it."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from goose.errors import RequestStateError
from goose.observation import TreeOutcome
from goose.request import DraftRequest
from goose.sources.context import ContextMatch, ContextMatcher
from goose.tree import TokenTree


def request(tokens: Sequence[int], *, request_id: str = "r", stop: Iterable[int] = ()) -> DraftRequest:
    prompt_ids = np.asarray(tokens, dtype=np.int64)
    return DraftRequest(
        request_id=request_id, prompt_ids=prompt_ids, stop_token_ids=frozenset(stop), cache_salt=None, budget=60
    )


def matcher(tokens: Sequence[int], *, stop: Iterable[int] = ()) -> ContextMatcher:
    source = ContextMatcher()
    source.start_request(request(tokens, stop=stop))
    return source


def commit(source: ContextMatcher, tokens: Sequence[int], request_id: str = "r") -> None:
    nothing = np.empty(0, dtype=np.int64)
    committed = np.asarray(tokens, dtype=np.int64)
    source.observe([TreeOutcome(request_id, TokenTree.anchor_only(0), nothing, committed, 0)], None)


def test_the_longest_ngram_wins() -> None:
    #                  3-gram here        5-gram here
    source = matcher([3, 4, 5, 90, 1, 2, 3, 4, 5, 91, 1, 2, 3, 4, 5])
    assert source.match("r", max_tokens=1) == ContextMatch([91], 5, 1, False, False)


def test_the_earliest_occurrence_is_copied() -> None:
    source = matcher([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3])
    match = source.match("r", max_tokens=3)
    assert match.token_ids == [50, 1, 2]
    assert (match.length, match.num_occurrences, match.unanimous) == (3, 2, False)


def test_occurrences_agree_by_the_token_that_follows() -> None:
    assert matcher([1, 2, 3, 50, 51, 1, 2, 3, 50, 52, 1, 2, 3]).match("r", max_tokens=5).unanimous
    assert not matcher([1, 2, 3, 50, 1, 2, 3]).match("r", max_tokens=5).unanimous


def test_two_tokens_are_not_enough() -> None:
    assert matcher([9, 1, 2, 50, 8, 1, 2]).match("r", max_tokens=5).num_occurrences == 0


def test_the_end_of_the_text_does_not_match_itself() -> None:
    assert matcher([1, 2, 3]).match("r", max_tokens=5) == ContextMatch([], 0, 0, False, False)


def test_a_copy_may_overlap_what_it_continues() -> None:
    assert matcher([7, 7, 7, 7]).match("r", max_tokens=5).token_ids == [7]


def test_committed_tokens_are_matched_at_once() -> None:
    source = matcher([1, 2, 3, 4])
    commit(source, [5, 1, 2])
    commit(source, [3])
    assert source.match("r", max_tokens=2).token_ids == [4, 5]


def test_the_end_of_a_draft_is_matched_in_the_committed_tokens() -> None:
    source = matcher([1, 2, 3, 4, 5, 6, 9, 9, 1, 2])
    assert source.match("r", [3], max_tokens=3).token_ids == [4, 5, 6]
    # The draft itself is no text to copy from.
    assert source.match("r", [7, 8, 7, 7, 8, 7], max_tokens=3).num_occurrences == 0


def test_a_copy_ends_before_a_stop_token() -> None:
    source = matcher([1, 2, 3, 4, 0, 5, 1, 2, 3], stop=[0])
    assert source.match("r", max_tokens=10) == ContextMatch([4], 3, 1, False, True)
    assert source.match("r", max_tokens=1) == ContextMatch([4], 3, 1, False, False)


def test_a_stop_token_next_leaves_nothing_to_copy() -> None:
    assert matcher([1, 2, 3, 0, 4, 1, 2, 3], stop=[0]).match("r", max_tokens=10).token_ids == []


def test_requests_do_not_see_each_other() -> None:
    source = matcher([1, 2, 3, 4])
    source.start_request(request([1, 2, 3], request_id="other"))
    assert source.match("other", max_tokens=5).num_occurrences == 0


def test_an_id_used_again_starts_from_nothing() -> None:
    source = matcher([1, 2, 3, 4, 1, 2, 3])
    source.stop_request("r")
    source.start_request(request([1, 2, 3]))
    assert source.match("r", max_tokens=5).num_occurrences == 0


def test_misuse_names_the_request() -> None:
    source = matcher([1])
    with pytest.raises(RequestStateError, match="'r' was started already"):
        source.start_request(request([1]))
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        source.match("gone", max_tokens=1)
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        source.stop_request("gone")
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        commit(source, [1], "gone")


def test_followers_are_those_of_the_longest_ngram_down_to_one_token() -> None:
    source = matcher([1, 2, 3, 50, 9, 2, 3, 60, 8, 3, 70, 3, 70, 1, 2, 3])
    # 1 2 3 occurs once before, whatever follows 2 3 or 3 elsewhere.
    assert source.followers("r") == {50: 1}
    assert source.followers("r", [2, 3]) == {60: 1, 50: 1}
    assert list(source.followers("r", [4, 3]).items()) == [(70, 2), (60, 1), (50, 1)]
    assert source.followers("r", [4]) == {}


def test_no_more_than_the_latest_occurrences_are_counted() -> None:
    source = ContextMatcher(max_occurrences=2)
    source.start_request(request([1, 50, 1, 60, 1, 70, 1]))
    assert list(source.followers("r").items()) == [(70, 1), (60, 1)]
