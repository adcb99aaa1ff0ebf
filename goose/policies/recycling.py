"""Token Recycling's tree (arXiv 2408.08696): one fixed shape, filled from the transition table alone.

A node of the shape is a path of ranks: 0, 2 is the third successor of the first successor of the anchor. The shape of
`budget` nodes is the one that expects the most accepted tokens if a successor at rank r is the target's choice with the
probability `rank_probs[r]`, whatever the token: the nodes of the highest products, imbalanced as in the paper, whose
own tree has 80 nodes. As there a token's successors are those of its latest row, whatever stood before it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from goose.observation import Harvest, TreeOutcome
from goose.policies.base import fit
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.registry import SourceSet
from goose.sources.transitions import TransitionTable
from goose.tree import FloatArray, TokenTree

__all__ = ["RecyclingConstants", "RecyclingPolicy", "static_shape"]

# What stands before a token makes no difference.
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclingConstants:
    """Settings of the policy."""

    # P(the target's choice is the successor at a rank), seen on 111 replies of a small model: 74 % at one of them
    rank_probs: tuple[float, ...] = (0.48, 0.10, 0.048, 0.032, 0.023, 0.017, 0.012, 0.011, 0.009, 0.008)


@lru_cache(maxsize=64)
def static_shape(rank_probs: tuple[float, ...], num_nodes: int) -> tuple[tuple[int, int], ...]:
    """Parent and rank of each of `num_nodes` draft nodes, likeliest first; 0 is the anchor, n the n-th of them."""
    shape: list[tuple[int, int]] = []
    # (-path probability, parent, rank, the parent's path probability)
    open_nodes = [(-rank_probs[0], 0, 0, 1.0)]
    while len(shape) < num_nodes:
        path_prob, parent, rank, above = heapq.heappop(open_nodes)
        shape.append((parent, rank))
        heapq.heappush(open_nodes, (path_prob * rank_probs[0], len(shape), 0, -path_prob))
        if rank + 1 < len(rank_probs):
            heapq.heappush(open_nodes, (-above * rank_probs[rank + 1], parent, rank + 1, above))
    return tuple(shape)


@dataclass(slots=True)
class _State:
    budget: int
    stop_token_ids: frozenset[int]
    cache_salt: str | None


class RecyclingPolicy:
    """Trees of `budget` nodes, smaller where the table has no row or a shorter one."""

    name = "recycling"
    source_names: tuple[str, ...] = ("transitions",)
    harvest_k = 0

    def __init__(self, sources: SourceSet, *, constants: RecyclingConstants = RecyclingConstants()) -> None:
        self._transitions = sources.get("transitions", TransitionTable)
        self._bit = sources.bit("transitions")
        self._rank_probs = constants.rank_probs
        self._states = RequestStates[_State](f"policy {self.name!r}")

    def start_request(self, request: DraftRequest) -> None:
        self._states.start(request.request_id, _State(request.budget, request.stop_token_ids, request.cache_salt))

    def propose(
        self, queries: Sequence[TreeQuery], max_nodes: int, step_seconds: FloatArray | None = None
    ) -> list[TokenTree]:
        return fit([self._tree(query).within(query.max_depth) for query in queries], max_nodes)

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None: ...

    def stop_request(self, request_id: str) -> None:
        self._states.stop(request_id)

    def _tree(self, query: TreeQuery) -> TokenTree:
        state = self._states[query.request_id]
        token_ids, parents, probs = [query.anchor_id], [-1], [1.0]
        # node of the shape -> node of the tree, for those that a successor was there for
        placed = {0: 0}
        rows: dict[int, list[int]] = {}
        for number, (above, rank) in enumerate(static_shape(self._rank_probs, state.budget - 1), start=1):
            if above not in placed:
                continue
            parent = placed[above]
            if parent not in rows:
                found = self._transitions.successors(_NO_TOKEN, token_ids[parent], cache_salt=state.cache_salt)
                rows[parent] = found[0]
            if rank < len(rows[parent]) and rows[parent][rank] not in state.stop_token_ids:
                placed[number] = len(token_ids)
                token_ids.append(rows[parent][rank])
                parents.append(parent)
                probs.append(self._rank_probs[rank])
        sources = [0] + [self._bit] * (len(token_ids) - 1)
        return TokenTree.from_parents(token_ids, parents, sources=sources, probs=probs)
