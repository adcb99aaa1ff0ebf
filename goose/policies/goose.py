"""The tree of the GOOSE paper (arXiv 2604.02047): a spine copied from the context, branches from the transition table.

Paper-faithful: equal node for node to the published method on reference inputs. Where the description leaves a choice,
the reading taken is the one under which all reference trees agree:

- *All continue alike* (consensus) means the first token after each occurrence.
- The chain is extended by matching the end of the draft in the *committed* tokens, the draft itself is no text to
  copy from. Each proposal is appended whole, so the chain may end beyond the wanted length.
- The allowances of the spine nodes are `max(1, int(spine_share / i / H))`, H the sum of all 1/i, handed out from the
  anchor down until the spine's share is spent; what a node cannot use is lost to the other spine nodes but not to the
  breadth-first extension, which starts from all that is left of the branch budget.
- The extension visits branch nodes alone, in the order in which they were added; *score* is the node's own, *remaining*
  the branch nodes not placed yet, *depth* that of the node in the tree, and nothing is added below depth 6.
- A spine of 100 nodes with confidence 1 makes a tree of 101: the spine's length does not count the anchor.

Beyond the paper, for serving: stop tokens are never drafted, and trees too deep or too large for the step are cut.
The rate that feeds the moving average is accepted spine nodes over spine nodes of the step's tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from goose.observation import Harvest, TreeOutcome
from goose.policies.base import fit
from goose.policies.spine_tree import SpineTreeBuilder
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.context import ContextMatch, ContextMatcher
from goose.sources.registry import SourceSet
from goose.sources.transitions import TransitionTable
from goose.tree import FloatArray, TokenTree

__all__ = ["GooseConstants", "GooseDecision", "GoosePolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GooseConstants:
    """The paper's constants."""

    # draft tokens of one context match
    chain_length: int = 20
    # draft tokens of an extended chain, and nodes of a tree, at confidence 1
    extended_length: int = 100
    # the chain is extended above this confidence
    extension_confidence: float = 0.6
    # a match of this many tokens is a long one
    long_match: int = 8
    max_branch_depth: int = 6
    min_score: float = 0.01
    # the spine's share of the branch budget
    spine_share: float = 0.5
    ema_start: float = 0.5
    ema_alpha: float = 0.3
    # (moving average below, spine ratio), else `spine_ratio`
    spine_ratio_tiers: tuple[tuple[float, float], ...] = ((0.2, 0.15), (0.4, 0.30))
    spine_ratio: float = 0.50


@dataclass(frozen=True, slots=True)
class GooseDecision:
    """What is drafted for one sequence, before any node is placed."""

    match: ContextMatch
    confidence: float
    route: Literal["tree", "chain", "autoregressive"]
    # tree: the match, extended if it is trusted; chain: the match
    chain: list[int]
    # draft nodes
    num_spine: int
    num_branch: int


@dataclass(slots=True)
class _State:
    budget: int
    stop_token_ids: frozenset[int]
    cache_salt: str | None
    spine_accept_ema: float


class GoosePolicy:
    """Where the table knows the anchor a tree, else the context match as a chain, else the anchor alone."""

    name = "goose"
    source_names: tuple[str, ...] = ("context", "transitions")
    harvest_k = 0

    def __init__(self, sources: SourceSet, *, constants: GooseConstants | None = None) -> None:
        self.constants = constants or GooseConstants()
        self._context = sources.get("context", ContextMatcher)
        self._transitions = sources.get("transitions", TransitionTable)
        self._context_bit = sources.bit("context")
        self._transitions_bit = sources.bit("transitions")
        self._states = RequestStates[_State](f"policy {self.name!r}")

    def start_request(self, request: DraftRequest) -> None:
        state = _State(request.budget, request.stop_token_ids, request.cache_salt, self.constants.ema_start)
        self._states.start(request.request_id, state)

    def stop_request(self, request_id: str) -> None:
        self._states.stop(request_id)

    def propose(
        self, queries: Sequence[TreeQuery], max_nodes: int, step_seconds: FloatArray | None = None
    ) -> list[TokenTree]:
        return fit([self._tree(query) for query in queries], max_nodes)

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        alpha = self.constants.ema_alpha
        for outcome in outcomes:
            spine = outcome.tree.sources & self._context_bit
            spine_nodes = np.count_nonzero(spine)
            if spine_nodes:
                rate = np.count_nonzero(spine[outcome.accepted_nodes]) / spine_nodes
                state = self._states[outcome.request_id]
                state.spine_accept_ema = alpha * rate + (1 - alpha) * state.spine_accept_ema

    def _tree(self, query: TreeQuery) -> TokenTree:
        # A budget of one asks for plain decoding.
        if query.max_depth < 1 or self._states[query.request_id].budget == 1:
            return TokenTree.anchor_only(query.anchor_id)
        return self.tree(query.request_id).within(query.max_depth)

    def decide(self, request_id: str) -> GooseDecision:
        state = self._states[request_id]
        match = self._context.match(request_id, max_tokens=self.constants.chain_length)
        confidence = self._confidence(match)
        if not self._transitions.knows(*self._transitions.last_two(request_id), cache_salt=state.cache_salt):
            route: Literal["chain", "autoregressive"] = "chain" if match.token_ids else "autoregressive"
            return GooseDecision(match, confidence, route, match.token_ids, len(match.token_ids), 0)
        chain = self._extended(request_id, match, confidence)
        num_spine, num_branch = self._sizes(state, confidence, len(chain))
        return GooseDecision(match, confidence, "tree", chain, num_spine, num_branch)

    def tree(self, request_id: str) -> TokenTree:
        """The paper's tree, as deep and as large as it comes."""
        decision = self.decide(request_id)
        state = self._states[request_id]
        previous_id, anchor_id = self._transitions.last_two(request_id)
        builder = SpineTreeBuilder(
            partial(self._transitions.successors, cache_salt=state.cache_salt),
            previous_id,
            anchor_id,
            stop_token_ids=state.stop_token_ids,
            num_branch_nodes=decision.num_branch,
            min_score=self.constants.min_score,
            spine_bit=self._context_bit,
            branch_bit=self._transitions_bit,
        )
        builder.add_spine(decision.chain[: decision.num_spine], decision.confidence)
        builder.add_branches(self.constants.spine_share)
        builder.extend_branches(self.constants.max_branch_depth)
        return builder.tree()

    def spine_accept_ema(self, request_id: str) -> float:
        """The moving average of the request's spine acceptance."""
        return self._states[request_id].spine_accept_ema

    def _confidence(self, match: ContextMatch) -> float:
        length, long_match = len(match.token_ids), self.constants.long_match
        if not length:
            return 0.0
        if match.unanimous:
            return 1.0
        if length >= long_match:
            return min(0.9, 0.7 + 0.2 * (length - long_match) / (self.constants.chain_length - long_match))
        return 0.6 * length / long_match

    def _extended(self, request_id: str, match: ContextMatch, confidence: float) -> list[int]:
        chain = list(match.token_ids)
        if confidence <= self.constants.extension_confidence:
            return chain
        length = int(self.constants.extended_length * confidence)
        while len(chain) < length and not match.cropped:
            match = self._context.match(request_id, chain, max_tokens=self.constants.chain_length)
            chain += match.token_ids
            if not match.token_ids or (confidence == 1.0 and self._confidence(match) < 1.0):
                break
        return chain

    def _sizes(self, state: _State, confidence: float, chain_length: int) -> tuple[int, int]:
        """Nodes of the spine and of the branches. The more a match is trusted, the more of both."""
        constants = self.constants
        nodes = state.budget + int(max(0, constants.extended_length - state.budget) * confidence)
        tiers = (ratio for below, ratio in constants.spine_ratio_tiers if state.spine_accept_ema < below)
        base = next(tiers, constants.spine_ratio)
        ratio = base + confidence * (1 - base)
        num_spine = min(chain_length, int(nodes * ratio))
        return num_spine, max(0, nodes - 1 - num_spine)
