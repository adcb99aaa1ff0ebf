"""Prompt lookup decoding: the context match as a single chain, 10 tokens long (Saxena 2023)."""

from collections.abc import Sequence

from goose.observation import Harvest, TreeOutcome
from goose.policies.base import fit
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.context import ContextMatcher
from goose.sources.registry import SourceSet
from goose.tree import FloatArray, TokenTree

__all__ = ["ChainPolicy"]


class ChainPolicy:
    """At most `max_tokens` draft tokens, fewer if the request's budget is smaller."""

    name = "chain"
    source_names: tuple[str, ...] = ("context",)
    harvest_k = 0

    def __init__(self, sources: SourceSet, *, max_tokens: int = 10) -> None:
        self._context = sources.get("context", ContextMatcher)
        self._bit = sources.bit("context")
        self._max_tokens = max_tokens
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
        longest = min(self._max_tokens, self._budgets[query.request_id] - 1, query.max_depth)
        if longest < 1:
            return TokenTree.anchor_only(query.anchor_id)
        match = self._context.match(query.request_id, max_tokens=longest)
        return TokenTree.chain(query.anchor_id, match.token_ids, source=self._bit)
