"""The pool of past outputs as a state machine, against lists of tokens that are searched from end to end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from goose_strategies import TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goose.observation import TreeOutcome
from goose.request import DraftRequest
from goose.sources.continuations import CountedTrie
from goose.sources.suffix import SuffixMatch, SuffixPool
from goose.sources.text_index import INDEXED_LENGTHS
from goose.tree import TokenTree

STOP = 4
MAX_OCCURRENCES = 3
# (token, when it came): times order occurrences across texts.
Text = list[tuple[int, int]]


@dataclass
class Live:
    salt: str | None
    own: Text
    output: Text


@dataclass
class Output:
    salt: str | None
    tokens: Text = field(default_factory=list)


def naive_matches(texts: Sequence[Text], end: list[int]) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Patterns at the end, longest first, each with what followed its latest occurrences, latest first."""
    found: list[tuple[int, list[tuple[int, ...]]]] = []
    longest = len(end)
    for ngram in INDEXED_LENGTHS:
        occurrences: list[tuple[int, int, tuple[int, ...]]] = []
        for text in texts:
            tokens = [token for token, _ in text]
            for offset in range(ngram, len(tokens)):
                if len(end) >= ngram and tokens[offset - ngram : offset] == end[-ngram:]:
                    length = max(n for n in range(ngram, offset + 1) if tokens[offset - n : offset] == end[-n:])
                    occurrences.append((text[offset][1], min(length, longest), tuple(tokens[offset:])))
        latest = sorted(occurrences, reverse=True)[:MAX_OCCURRENCES]
        for length in sorted({length for _, length, _ in latest}, reverse=True):
            found.append((length, [after for _, matched, after in latest if matched >= length]))
        longest = min(longest, ngram - 1)
    return found


def naive_counts(continuations: list[tuple[int, ...]], depth: int) -> dict[tuple[int, ...], int]:
    counts: dict[tuple[int, ...], int] = {}
    for after in continuations:
        for length in range(1, min(depth, len(after)) + 1):
            if after[length - 1] == STOP:
                break
            counts[after[:length]] = counts.get(after[:length], 0) + 1
    return counts


def paths(token_ids: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    made: list[tuple[int, ...]] = []
    for token, parent in zip(token_ids, parents, strict=True):
        made.append((*(made[parent] if parent >= 0 else ()), token))
    return made


def counts_of(trie: CountedTrie) -> dict[tuple[int, ...], int]:
    made = paths(trie.token_ids.tolist(), trie.parents.tolist())
    assert len(set(made)) == len(made)
    return dict(zip(made, trie.counts.tolist(), strict=True))


class PoolMachine(RuleBasedStateMachine):
    """Requests come, commit and go, under two salts, in a pool that is too small for them."""

    @initialize(max_tokens=st.integers(0, 40))
    def make(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.pool = SuffixPool(max_tokens=max_tokens, max_occurrences=MAX_OCCURRENCES)
        self.live: dict[str, Live] = {}
        self.outputs: list[Output] = []
        self.time = 0

    def stamped(self, tokens: Sequence[int]) -> Text:
        first, self.time = self.time, self.time + len(tokens)
        return [(token, first + place) for place, token in enumerate(tokens)]

    @precondition(lambda self: len(self.live) < 3)
    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=12), salt=st.sampled_from([None, "a"]))
    def start(self, prompt: list[int], salt: str | None) -> None:
        name = next(name for name in ("x", "y", "z") if name not in self.live)
        self.pool.start_request(
            DraftRequest(
                request_id=name,
                prompt_ids=np.asarray(prompt, dtype=np.int64),
                stop_token_ids=frozenset({STOP}),
                cache_salt=salt,
                budget=60,
            )
        )
        output = Output(salt)
        self.outputs.append(output)
        self.live[name] = Live(salt, self.stamped(prompt), output.tokens)

    @precondition(lambda self: self.live)
    @rule(commits=st.lists(st.lists(TOKENS, max_size=12), min_size=3, max_size=3))
    def commit(self, commits: list[list[int]]) -> None:
        outcomes: list[TreeOutcome] = []
        for (name, request), tokens in zip(self.live.items(), commits, strict=False):
            committed = self.stamped(tokens)
            request.own += committed
            request.output += committed
            nothing = np.empty(0, dtype=np.int64)
            outcomes.append(TreeOutcome(name, TokenTree.anchor_only(0), nothing, np.asarray(tokens, dtype=np.int64), 0))
        self.pool.observe(outcomes, None)
        while sum(len(output.tokens) for output in self.outputs) > self.max_tokens:
            evicted = self.outputs.pop(0)
            for request in self.live.values():
                if request.output is evicted.tokens:
                    request.output = []

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 2))
    def stop(self, which: int) -> None:
        name = list(self.live)[which % len(self.live)]
        self.pool.stop_request(name)
        request = self.live.pop(name)
        self.outputs = [output for output in self.outputs if output.tokens or output.tokens is not request.output]

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 2), draft=st.lists(TOKENS, max_size=3), depth=st.integers(1, 6))
    def ask(self, which: int, draft: list[int], depth: int) -> None:
        name = list(self.live)[which % len(self.live)]
        request = self.live[name]
        end = [*(token for token, _ in request.own), *draft]
        pooled = [output.tokens for output in self.outputs if output.salt == request.salt]
        own = list(self.pool.own_matches(name, draft))
        assert self.counts(name, own, depth, pooled=False) == self.expected([request.own], end, depth)
        found = list(self.pool.pooled_matches(name, draft))
        assert self.counts(name, found, depth, pooled=True) == self.expected(pooled, end, depth)

    def counts(
        self, name: str, matches: list[SuffixMatch], depth: int, *, pooled: bool
    ) -> list[tuple[int, dict[tuple[int, ...], int]]]:
        ask = self.pool.pooled_continuations if pooled else self.pool.own_continuations
        return [(match.length, counts_of(ask(name, match, depth))) for match in matches]

    def expected(self, texts: list[Text], end: list[int], depth: int) -> list[tuple[int, dict[tuple[int, ...], int]]]:
        return [(length, naive_counts(followed, depth)) for length, followed in naive_matches(texts, end)]

    @invariant()
    def what_is_kept_is_what_fits(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_outputs == len(self.outputs)
        assert self.pool.num_tokens == sum(len(output.tokens) for output in self.outputs) <= self.max_tokens

    def teardown(self) -> None:
        for name in list(self.live):
            self.pool.stop_request(name)
        # Only outputs with tokens in them stay, so that their number is bounded as well.
        assert self.pool.num_outputs <= self.pool.num_tokens <= self.max_tokens


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

ROWS = st.lists(st.lists(TOKENS, min_size=1, max_size=6), min_size=1, max_size=8)


@given(ROWS, st.integers(1, 12), st.floats(0.0, 1.0))
def test_the_likeliest_subtree_is_that_of_the_highest_counts(
    rows: list[list[int]], num_nodes: int, min_path_prob: float
) -> None:
    padded = np.full((len(rows), 6), -1, dtype=np.int64)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    whole = CountedTrie.of(padded)
    counts = counts_of(whole)
    assert counts == {
        path: sum(tuple(tokens[: len(path)]) == path for tokens in rows)
        for path in {tuple(tokens[:length]) for tokens in rows for length in range(1, len(tokens) + 1)}
    }
    kept = counts_of(whole.likeliest(num_nodes, min_path_prob))
    assert kept.items() <= counts.items()
    assert all(path[:-1] in kept for path in kept if len(path) > 1)
    likely = sorted((count for count in counts.values() if count >= min_path_prob * len(rows)), reverse=True)
    assert sorted(kept.values(), reverse=True) == likely[:num_nodes]
    tree = TokenTree.from_parents([0, *whole.token_ids], [-1, *(whole.parents + 1)], probs=[1.0, *whole.probs()])
    np.testing.assert_allclose(tree.path_probs()[1:], whole.path_probs(), rtol=1e-5)
