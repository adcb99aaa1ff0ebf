"""The isotropic tree: every node of a level gets the same number of children, whatever drafted it.

Both sources are asked at every node and their candidates are ranked together: a token's score is the share of earlier
occurrences of the last tokens that it followed, and the table's score added to it. How many children the nodes of a
level get is chosen to maximise the expected number of accepted tokens within the budget, from how often the target's
choice was found at each depth and rank. That is measured as the policy runs, apart for requests that accept little and
for those that accept much: replies that repeat themselves want a chain, others a fan, and one shape for both would
serve neither. A control, then, that knows as much as the others, and spends it the best way a tree can that does not
tell one node of a level from another.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from goose.observation import Harvest, TreeOutcome
from goose.policies.base import fit
from goose.policies.breadths import RankAcceptance
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.context import ContextMatcher
from goose.sources.registry import SourceSet
from goose.sources.transitions import TransitionTable
from goose.tree import FloatArray, TokenTree

__all__ = ["BalancedConstants", "BalancedPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedConstants:
    """Settings of the policy."""

    # accepted tokens a step at which a request moves to the next shape
    tiers: tuple[float, ...] = (0.7, 1.5, 4.0)
    # of the moving average of accepted tokens a step
    ema_alpha: float = 0.2


@dataclass(slots=True)
class _State:
    budget: int
    stop_token_ids: frozenset[int]
    cache_salt: str | None
    # moving average of accepted tokens a step
    accepted: float = 0.0
    # draft down to a node of the last tree -> the node's candidates, best first
    candidates: dict[tuple[int, ...], list[int]] = field(default_factory=dict)


class BalancedPolicy:
    """Trees of `budget` nodes, smaller only where the sources know nothing more."""

    name = "balanced"
    source_names: tuple[str, ...] = ("context", "transitions")
    harvest_k = 0

    def __init__(self, sources: SourceSet, *, constants: BalancedConstants = BalancedConstants()) -> None:
        self._constants = constants
        self._context = sources.get("context", ContextMatcher)
        self._transitions = sources.get("transitions", TransitionTable)
        self._context_bit = sources.bit("context")
        self._transitions_bit = sources.bit("transitions")
        self._tiers = [RankAcceptance() for _ in range(len(constants.tiers) + 1)]
        self._states = RequestStates[_State](f"policy {self.name!r}")

    def start_request(self, request: DraftRequest) -> None:
        self._states.start(request.request_id, _State(request.budget, request.stop_token_ids, request.cache_salt))

    def propose(
        self, queries: Sequence[TreeQuery], max_nodes: int, step_seconds: FloatArray | None = None
    ) -> list[TokenTree]:
        return fit([self._tree(query) for query in queries], max_nodes)

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        for outcome in outcomes:
            state = self._states[outcome.request_id]
            tier = self._tier(state)
            accepted = outcome.tree.token_ids[outcome.accepted_nodes].tolist()
            for depth, choice in enumerate([*accepted, outcome.bonus_id], start=1):
                candidates = state.candidates.get(tuple(accepted[: depth - 1]))
                # Every candidate of a reached node was tried, drafted or not: the target's choice is known there.
                if candidates is not None:
                    tier.observe(depth, candidates.index(choice) if choice in candidates else None)
            state.candidates.clear()
            state.accepted += self._constants.ema_alpha * (len(accepted) - state.accepted)

    def stop_request(self, request_id: str) -> None:
        self._states.stop(request_id)

    def _tier(self, state: _State) -> RankAcceptance:
        return self._tiers[bisect_right(self._constants.tiers, state.accepted)]

    def _tree(self, query: TreeQuery) -> TokenTree:
        state = self._states[query.request_id]
        state.candidates.clear()
        left = state.budget - 1
        if left < 1 or query.max_depth < 1:
            return TokenTree.anchor_only(query.anchor_id)
        tier = self._tier(state)
        plan = tier.plan(left)
        last_two = self._transitions.last_two(query.request_id)
        token_ids, parents, sources, probs = [query.anchor_id], [-1], [0], [1.0]
        # (node, the draft from below the anchor down to it)
        level: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        for depth in range(1, query.max_depth + 1):
            breadth = plan.breadth(depth, len(level), left)
            below: list[tuple[int, tuple[int, ...]]] = []
            for node, draft in level if breadth else ():
                ranked = self._ranked(query.request_id, state, draft, (*last_two, *draft)[-2:])
                state.candidates[draft] = [token for token, _ in ranked]
                for rank, (token, bits) in enumerate(ranked[:breadth]):
                    below.append((len(token_ids), (*draft, token)))
                    token_ids.append(token)
                    parents.append(node)
                    sources.append(bits)
                    probs.append(tier.prob(depth, rank))
            if not below:
                break
            level = below
            left -= len(level)
        return TokenTree.from_parents(token_ids, parents, sources=sources, probs=probs)

    def _ranked(
        self, request_id: str, state: _State, draft: tuple[int, ...], last_two: tuple[int, ...]
    ) -> list[tuple[int, int]]:
        """Tokens that may follow, best first, without stop tokens, and the sources of each."""
        followers = self._context.followers(request_id, draft)
        total = sum(followers.values())
        scores = {token: count / total for token, count in followers.items()}
        bits = dict.fromkeys(followers, self._context_bit)
        successors = self._transitions.successors(last_two[0], last_two[1], cache_salt=state.cache_salt)
        for token, score in zip(*successors, strict=True):
            scores[token] = scores.get(token, 0.0) + score
            bits[token] = bits.get(token, 0) | self._transitions_bit
        ordered = sorted(scores, key=scores.__getitem__, reverse=True)
        return [(token, bits[token]) for token in ordered if token not in state.stop_token_ids]
