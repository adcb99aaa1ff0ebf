"""The sources against naive models: a table of dictionaries, a search through the text."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from goose_strategies import TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest
from goose.sources.context import NGRAM_LENGTHS, ContextMatch, ContextMatcher
from goose.sources.transitions import TransitionTable
from goose.tree import TokenTree

TEXT = st.lists(TOKENS, min_size=1, max_size=40)


def naive_occurrences(
    text: list[int], draft: list[int], lengths: Sequence[int] = NGRAM_LENGTHS
) -> tuple[int, list[int]]:
    """The longest n-gram at the end of text + draft that occurs in the text with a token behind it: n, positions."""
    tail = text + draft
    for length in lengths:
        if len(tail) < length:
            continue
        ngram = tail[len(tail) - length :]
        found = [end for end in range(length, len(text)) if text[end - length : end] == ngram]
        if found:
            return length, found
    return 0, []


def naive_match(text: list[int], draft: list[int], stop: set[int], max_tokens: int) -> ContextMatch:
    length, found = naive_occurrences(text, draft)
    if not found:
        return ContextMatch([], 0, 0, False, False)
    copied = text[found[0] : found[0] + max_tokens]
    kept: list[int] = []
    for token in copied:
        if token in stop:
            break
        kept.append(token)
    unanimous = len(found) >= 2 and len({text[end] for end in found}) == 1
    return ContextMatch(kept, length, len(found), unanimous, len(kept) < len(copied))


def started(tokens: list[int], stop: set[int]) -> ContextMatcher:
    source = ContextMatcher()
    prompt = np.asarray(tokens, dtype=np.int64)
    source.start_request(
        DraftRequest(request_id="r", prompt_ids=prompt, stop_token_ids=frozenset(stop), cache_salt=None, budget=60)
    )
    return source


@settings(max_examples=300)
@given(TEXT, st.lists(TEXT, max_size=3), st.lists(TOKENS, max_size=8), st.sets(TOKENS, max_size=2), st.integers(0, 12))
def test_a_match_is_what_a_search_through_the_text_finds(
    prompt: list[int], commits: list[list[int]], draft: list[int], stop: set[int], max_tokens: int
) -> None:
    source, text = started(prompt, stop), list(prompt)
    for committed in commits:
        text += committed
        nothing = np.empty(0, dtype=np.int64)
        outcome = TreeOutcome("r", TokenTree.anchor_only(0), nothing, np.asarray(committed, dtype=np.int64), 0)
        source.observe([outcome], None)
    assert source.match("r", max_tokens=max_tokens) == naive_match(text, [], stop, max_tokens)
    assert source.match("r", draft, max_tokens=max_tokens) == naive_match(text, draft, stop, max_tokens)


@given(TEXT, st.lists(TOKENS, max_size=4))
def test_followers_are_what_follows_all_occurrences(prompt: list[int], draft: list[int]) -> None:
    _, found = naive_occurrences(prompt, draft, (*NGRAM_LENGTHS, 2, 1))
    assert started(prompt, set()).followers("r", draft) == Counter(prompt[end] for end in found)


ROWS = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 3), st.lists(st.integers(0, 9), min_size=3, max_size=3, unique=True)),
    max_size=12,
)


@settings(max_examples=300)
@given(st.lists(ROWS, max_size=4), st.integers(1, 6))
def test_the_table_is_two_dictionaries(harvests: list[list[tuple[int, int, list[int]]]], max_pairs: int) -> None:
    source = TransitionTable(num_successors=3, max_pairs=max_pairs)
    tokens: dict[int, list[int]] = {}
    pairs: dict[tuple[int, int], list[int]] = {}
    for rows in harvests:
        source.observe(
            [],
            Harvest(
                previous_ids=np.asarray([row[0] for row in rows], dtype=np.int64),
                token_ids=np.asarray([row[1] for row in rows], dtype=np.int64),
                top_ids=np.asarray([row[2] for row in rows], dtype=np.int64).reshape(-1, 3),
                top_probs=np.full((len(rows), 3), 0.25, dtype=np.float32),
            ),
        )
        # Of one harvest the last row of each pair counts, in the order of these.
        latest = {(previous, token): ids for previous, token, ids in rows}
        ordered = sorted(latest, key=lambda pair: max(at for at, row in enumerate(rows) if row[:2] == pair))
        tokens |= {token: ids for _, token, ids in rows}
        for pair in [pair for pair in ordered if pair[0] >= 0][-max_pairs:]:
            if pair not in pairs and len(pairs) == max_pairs:
                del pairs[next(iter(pairs))]
            pairs[pair] = latest[pair]
    assert source.num_pairs == len(pairs) <= max_pairs
    for previous in range(-1, 5):
        for token in range(5):
            expected = pairs.get((previous, token), tokens.get(token, []))
            assert source.successors(previous, token) == (expected, [0.25] * len(expected))
            assert source.knows(previous, token) == bool(expected)
