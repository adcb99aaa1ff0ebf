"""The transition table: which tier answers, what is replaced, and how much is kept."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from goose.errors import RequestStateError
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.request import DraftRequest
from goose.sources.transitions import TransitionTable
from goose.tree import TokenTree

# (previous token or -1, token, successors, scores)
Row = tuple[int, int, Sequence[int], Sequence[float]]


def harvest(*rows: Row) -> Harvest:
    return Harvest(
        previous_ids=np.asarray([row[0] for row in rows], dtype=np.int64),
        token_ids=np.asarray([row[1] for row in rows], dtype=np.int64),
        top_ids=np.asarray([row[2] for row in rows], dtype=np.int64),
        top_probs=np.asarray([row[3] for row in rows], dtype=np.float32),
    )


def table(*rows: Row, num_successors: int = 2, max_pairs: int = 100) -> TransitionTable:
    source = TransitionTable(num_successors=num_successors, max_pairs=max_pairs)
    if rows:
        source.observe([], harvest(*rows))
    return source


def request(
    tokens: Sequence[int], *, stop: Iterable[int] = (), name: str = "r", salt: str | None = None
) -> DraftRequest:
    prompt_ids = np.asarray(tokens, dtype=np.int64)
    return DraftRequest(
        request_id=name, prompt_ids=prompt_ids, stop_token_ids=frozenset(stop), cache_salt=salt, budget=60
    )


def test_the_pair_is_asked_before_the_token() -> None:
    source = table((1, 5, [10, 11], [0.5, 0.25]), (2, 5, [20, 21], [0.75, 0.125]))
    assert source.successors(1, 5) == ([10, 11], [0.5, 0.25])
    assert source.successors(2, 5) == ([20, 21], [0.75, 0.125])
    # An unknown pair is answered by the token's latest row.
    assert source.successors(3, 5) == ([20, 21], [0.75, 0.125])
    assert source.successors(-1, 5) == ([20, 21], [0.75, 0.125])


def test_an_unknown_token_has_no_successors() -> None:
    source = table((1, 5, [10, 11], [0.5, 0.25]))
    assert source.successors(1, 4) == ([], [])
    assert source.successors(1, 10**6) == ([], [])
    assert source.knows(9, 5)
    assert not source.knows(1, 4)
    assert not table().knows(1, 5)


@pytest.mark.parametrize("together", [True, False])
def test_a_later_row_replaces_an_earlier_one(together: bool) -> None:
    old, new = (1, 5, [10, 11], [0.5, 0.25]), (1, 5, [12, 13], [0.5, 0.25])
    source = table(old, new) if together else table(old)
    if not together:
        source.observe([], harvest(new))
    assert source.successors(1, 5)[0] == [12, 13]
    assert source.successors(-1, 5)[0] == [12, 13]
    assert source.num_pairs == 1


def test_a_row_without_a_token_before_is_no_pair() -> None:
    source = table((-1, 5, [10, 11], [0.5, 0.25]))
    assert source.num_pairs == 0
    assert source.successors(-1, 5)[0] == [10, 11]


def test_wider_rows_are_cut_and_narrower_ones_are_not_padded() -> None:
    source = table((1, 5, [10, 11, 12], [0.5, 0.25, 0.125]))
    source.observe([], harvest((1, 6, [10], [0.5])))
    assert source.successors(1, 5) == ([10, 11], [0.5, 0.25])
    assert source.successors(1, 6) == ([10], [0.5])


def test_the_pair_that_entered_first_is_evicted() -> None:
    source = table(*((previous, 5, [previous, 0], [0.5, 0.25]) for previous in (1, 2, 3)), max_pairs=2)
    assert source.num_pairs == 2
    assert source.successors(2, 5)[0] == [2, 0]
    assert source.successors(3, 5)[0] == [3, 0]
    source.observe([], harvest((4, 5, [4, 0], [0.5, 0.25])))
    assert source.num_pairs == 2
    # Pair (2, 5) is gone, so the token's own row answers, which is that of the pair (4, 5).
    assert source.successors(2, 5)[0] == [4, 0]
    assert source.successors(3, 5)[0] == [3, 0]


def test_a_pair_evicted_by_its_own_batch_leaves_no_trace() -> None:
    source = table((1, 5, [1, 0], [0.5, 0.25]), (2, 5, [2, 0], [0.5, 0.25]), max_pairs=2)
    # (1, 5) is written again and then evicted by (3, 5), in one harvest.
    source.observe([], harvest((1, 5, [7, 0], [0.5, 0.25]), (3, 5, [3, 0], [0.5, 0.25])))
    assert source.successors(3, 5)[0] == [3, 0]
    assert source.successors(2, 5)[0] == [2, 0]
    assert source.num_pairs == 2


def test_rows_stay_warm_across_requests() -> None:
    source = table((1, 5, [10, 11], [0.5, 0.25]))
    source.start_request(request([1, 5]))
    source.stop_request("r")
    source.start_request(request([1, 5]))
    assert source.successors(*source.last_two("r"))[0] == [10, 11]


def test_the_last_two_tokens_follow_what_is_committed() -> None:
    source = table()
    source.start_request(request([4]))
    assert source.last_two("r") == (-1, 4)
    nothing = np.empty(0, dtype=np.int64)
    for committed, expected in (([5], (4, 5)), ([6, 7, 8], (7, 8)), ([], (7, 8))):
        ids = np.asarray(committed, dtype=np.int64)
        source.observe([TreeOutcome("r", TokenTree.anchor_only(0), nothing, ids, 0)], None)
        assert source.last_two("r") == expected


def from_requests(rows: Harvest, names: Sequence[str], owners: Sequence[int]) -> Harvest:
    positions = np.full(len(owners), -1, dtype=np.int64)
    origin = HarvestOrigin(tuple(names), np.asarray(owners, dtype=np.int64), positions)
    return Harvest(rows.previous_ids, rows.token_ids, rows.top_ids, rows.top_probs, origin)


def test_rows_are_shown_to_requests_of_their_salt_alone() -> None:
    source = table()
    for name, salt in (("a", "tenant a"), ("b", "tenant b"), ("none", None)):
        source.start_request(request([1, 5], name=name, salt=salt))
    rows = harvest(*((1, 5, [token, 0], [0.5, 0.25]) for token in (10, 20, 30)))
    source.observe([], from_requests(rows, ["none", "a", "b"], [1, 2, 0]))
    for salt, expected in (("tenant a", 10), ("tenant b", 20), (None, 30)):
        assert source.successors(1, 5, cache_salt=salt)[0] == [expected, 0]
        # Of another pair the token's own row answers, and it is no one else's either.
        assert source.successors(9, 5, cache_salt=salt)[0] == [expected, 0]
    assert source.successors(1, 5, cache_salt="tenant c") == ([], [])
    assert not source.knows(1, 5, cache_salt="tenant c")
    assert source.knows(9, 5, cache_salt="tenant a")


def test_rows_of_requests_that_the_table_does_not_serve_are_left_out() -> None:
    source = table()
    source.start_request(request([1], name="served"))
    rows = harvest((1, 5, [10, 0], [0.5, 0.25]), (1, 6, [11, 0], [0.5, 0.25]))
    source.observe([], from_requests(rows, ["served", "of another policy"], [0, 1]))
    assert source.knows(1, 5)
    assert not source.knows(1, 6)


def test_rows_of_a_vocabulary_of_152k_fit_into_32_megabytes_and_pairs_and_salts_are_bounded() -> None:
    source = TransitionTable()
    source.start_request(request([1], name="salted", salt="s"))
    vocab, chunk = 152_064, 4096
    # Ascending, which makes the table grow in the smallest steps.
    for first in range(0, vocab, chunk):
        tokens = np.arange(first, min(first + chunk, vocab))
        rows = Harvest(
            previous_ids=tokens[::-1].copy(),
            token_ids=tokens,
            top_ids=np.tile(np.arange(10), (len(tokens), 1)),
            top_probs=np.full((len(tokens), 10), 0.1, dtype=np.float32),
        )
        source.observe([], rows)
        source.observe([], from_requests(rows, ["salted"], [0] * len(tokens)))
    assert source.knows(-1, vocab - 1)
    assert source.knows(-1, 0)
    assert source.num_bytes["tokens"] <= 32e6
    assert source.num_pairs == 65536
    assert source.num_bytes["pairs"] <= 8e6
    assert source.num_bytes["salted_tokens"] <= 8e6


def test_misuse_names_the_request() -> None:
    source = table()
    source.start_request(request([1]))
    with pytest.raises(RequestStateError, match="'r' was started already"):
        source.start_request(request([1]))
    source.stop_request("r")
    with pytest.raises(RequestStateError, match="'r' is not started"):
        source.stop_request("r")
    with pytest.raises(RequestStateError, match="'r' is not started"):
        source.last_two("r")
