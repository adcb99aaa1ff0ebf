"""Grows a spine tree: a chain below the anchor, branches along it, then the branches breadth first.

The arithmetic of the GOOSE paper without its decisions: how long the spine is and how many branch nodes there are has
been settled before. Works on plain lists, a hundred entries long, where they beat arrays.
"""

import math
from collections.abc import Callable

from goose.tree import TokenTree

__all__ = ["SpineTreeBuilder", "Successors"]

# (token before, token) -> successors, most likely first, and their scores.
Successors = Callable[[int, int], tuple[list[int], list[float]]]

# A draft token is never certain. Kept below 1 so that cutting a tree weighs branches against the depth of a spine.
_MAX_SPINE_PROB = 0.95
# Widest node at depth 1; narrows as 1 / depth.
_MAX_WIDTH = 10


class SpineTreeBuilder:
    """One tree. Call `add_spine`, `add_branches`, `extend_branches` in this order, then `tree`."""

    def __init__(
        self,
        successors: Successors,
        previous_id: int,
        anchor_id: int,
        *,
        stop_token_ids: frozenset[int],
        num_branch_nodes: int,
        min_score: float,
        spine_bit: int,
        branch_bit: int,
    ) -> None:
        self._successors = successors
        self._previous_id = previous_id
        self._stop_token_ids = stop_token_ids
        self._num_branch_nodes = num_branch_nodes
        self._min_score = min_score
        self._spine_bit, self._branch_bit = spine_bit, branch_bit
        self._num_spine = 0
        # [num_nodes] each, the anchor first, then the spine
        self._token_ids = [anchor_id]
        self._parents = [-1]
        self._depths = [0]
        self._sources = [0]
        self._scores = [1.0]
        self._probs = [1.0]

    @property
    def _remaining(self) -> int:
        return self._num_branch_nodes - (len(self._token_ids) - 1 - self._num_spine)

    def add_spine(self, chain: list[int], confidence: float) -> None:
        prob = min(confidence, _MAX_SPINE_PROB)
        for token_id in chain:
            self._add(len(self._token_ids) - 1, token_id, self._spine_bit, confidence, prob)
        self._num_spine = len(chain)

    def add_branches(self, spine_share: float) -> None:
        """Branches at the anchor and, for `spine_share` of the branch nodes, along the spine, falling as 1 / depth."""
        if self._num_branch_nodes < 1:
            return
        left = max(1, int(spine_share * self._num_branch_nodes)) if self._num_spine else 0
        self._branch(0, self._num_branch_nodes - left)
        harmonic = sum(1 / depth for depth in range(1, self._num_spine + 1))
        total = left
        for node in range(1, self._num_spine + 1):
            if left < 1:
                return
            allowance = min(left, max(1, int(total / node / harmonic)))
            self._branch(node, allowance)
            left -= allowance

    def extend_branches(self, max_depth: int) -> None:
        """Gives what is left to the branches, breadth first, wider below likely nodes and narrower with depth."""
        node = self._num_spine + 1
        while node < len(self._token_ids) and (remaining := self._remaining) > 0:
            depth = self._depths[node]
            if depth < max_depth:
                width = min(max(1, math.ceil(remaining * self._scores[node])), max(1, _MAX_WIDTH // depth), remaining)
                self._branch(node, width)
            node += 1

    def tree(self) -> TokenTree:
        return TokenTree.from_parents(self._token_ids, self._parents, sources=self._sources, probs=self._probs)

    def _branch(self, node: int, most: int) -> None:
        """Adds up to `most` successors of a node; one that the spine has there already is credited, not added."""
        parent = self._parents[node]
        previous_id = self._token_ids[parent] if parent >= 0 else self._previous_id
        spine_child = node + 1 if node < self._num_spine else -1
        left_by_spine = 1.0 - self._probs[spine_child] if spine_child > 0 else 1.0
        for token_id, score in zip(*self._successors(previous_id, self._token_ids[node]), strict=True):
            if most < 1 or score < self._min_score:
                return
            if token_id in self._stop_token_ids:
                continue
            if spine_child > 0 and token_id == self._token_ids[spine_child]:
                self._sources[spine_child] |= self._branch_bit
                continue
            self._add(node, token_id, self._branch_bit, score, score * left_by_spine)
            most -= 1

    def _add(self, parent: int, token_id: int, source: int, score: float, prob: float) -> None:
        self._token_ids.append(token_id)
        self._parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._sources.append(source)
        self._scores.append(score)
        self._probs.append(prob)
