"""SuffixDecoding's tree (arXiv 2411.04975): the likeliest continuations of the pattern that promises most.

Every end of the request's text that occurs in its own text or in past outputs is a pattern. For each the draft is the
greedily grown tree of the likeliest continuations, at most `factor` tokens for each token of the pattern, and its score
the expected number of accepted tokens, the sum of its nodes' path probabilities. The best score wins.

The reading taken: path probabilities are counts over the latest occurrences; an occurrence that nothing follows is
none; of equal scores the request's own text wins, then the longer pattern. The paper leaves `factor` to the
deployment; here it grows with the request's budget, so that eight matched tokens are worth all of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from goose.observation import Harvest, TreeOutcome
from goose.policies.base import fit
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.continuations import CountedTrie
from goose.sources.registry import SourceSet
from goose.sources.suffix import SuffixMatch, SuffixPool
from goose.tree import FloatArray, TokenTree

__all__ = ["SuffixConstants", "SuffixPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixConstants:
    """Settings of the rule."""

    # a match of this many tokens is worth a draft of the whole budget, a shorter one its share
    full_match: int = 8
    # nodes less likely than this, from the anchor down, are not drafted
    min_path_prob: float = 0.03


@dataclass(slots=True)
class _Best:
    trie: CountedTrie | None
    score: float
    bit: int


class SuffixPolicy:
    """Small drafts behind short matches, large ones behind long matches, none where nothing matches."""

    name = "suffix"
    source_names: tuple[str, ...] = ("pool",)
    harvest_k = 0

    def __init__(self, sources: SourceSet, *, constants: SuffixConstants = SuffixConstants()) -> None:
        self._pool = sources.get("pool", SuffixPool)
        self._own_bit, self._pooled_bit = sources.bit("context"), sources.bit("pool")
        self._constants = constants
        self._budgets = RequestStates[int](f"policy {self.name!r}")

    def start_request(self, request: DraftRequest) -> None:
        self._budgets.start(request.request_id, request.budget)

    def propose(
        self, queries: Sequence[TreeQuery], max_nodes: int, step_seconds: FloatArray | None = None
    ) -> list[TokenTree]:
        return fit([self._tree(query) for query in queries], max_nodes)

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None: ...

    def stop_request(self, request_id: str) -> None:
        self._budgets.stop(request_id)

    def _tree(self, query: TreeQuery) -> TokenTree:
        most = self._budgets[query.request_id] - 1
        best = _Best(None, 0.0, 0)
        if min(most, query.max_depth) > 0:
            name, pool = query.request_id, self._pool
            self._improve(best, query, pool.own_matches(name), pool.own_continuations, self._own_bit)
            self._improve(best, query, pool.pooled_matches(name), pool.pooled_continuations, self._pooled_bit)
        if best.trie is None:
            return TokenTree.anchor_only(query.anchor_id)
        return TokenTree.from_parents(
            np.concatenate([[query.anchor_id], best.trie.token_ids]),
            np.concatenate([[-1], best.trie.parents + 1]),
            sources=np.concatenate([[0], np.full(len(best.trie), best.bit)]),
            probs=np.concatenate([np.ones(1, dtype=np.float32), best.trie.probs()]),
        )

    def _improve(
        self,
        best: _Best,
        query: TreeQuery,
        matches: Iterable[SuffixMatch],
        continuations: Callable[[str, SuffixMatch, int], CountedTrie],
        bit: int,
    ) -> None:
        """Goes on to shorter patterns until even a certain draft of the size they allow could not score more."""
        most = self._budgets[query.request_id] - 1
        for match in matches:
            size = max(1, min(most, (most + 1) * match.length // self._constants.full_match))
            if size <= best.score:
                return
            trie = continuations(query.request_id, match, min(size, query.max_depth))
            draft = trie.likeliest(size, self._constants.min_path_prob)
            score = float(draft.path_probs().sum())
            if score > best.score:
                best.trie, best.score, best.bit = draft, score, bit
