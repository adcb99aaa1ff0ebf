"""Draft trees as flat arrays.

A tree is what one sequence asks the target to verify in one step: node 0 is the *anchor* (last committed
token), every other node is a *draft node*. Knows nothing about where the tokens come from or how they are
verified.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.errors import InvalidTreeError

__all__ = ["BoolArray", "FloatArray", "IntArray", "TokenTree", "TreeBatch"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """One sequence's tree. All arrays have one entry a node, the anchor first, parents before children.

    Build with `TokenTree.from_parents`, which derives the depths and checks the shape.
    """

    # [num_nodes] int64
    token_ids: IntArray
    # [num_nodes] int64; -1 for the anchor, else an index below the node's own
    parents: IntArray
    # [num_nodes] int64; 0 for the anchor
    depths: IntArray
    # [num_nodes] int64; bit s is set if source number s proposed the node, 0 for the anchor
    sources: IntArray
    # [num_nodes] float32; predicted P(accepted | parent reached), 1 for the anchor and where nothing was predicted
    probs: FloatArray

    @classmethod
    def from_parents(
        cls,
        token_ids: Sequence[int] | IntArray,
        parents: Sequence[int] | IntArray,
        *,
        sources: Sequence[int] | IntArray | None = None,
        probs: Sequence[float] | FloatArray | None = None,
    ) -> "TokenTree":
        """Raises InvalidTreeError unless the arrays, of one length, describe a tree rooted at node 0, parents first."""
        tokens = np.asarray(token_ids, dtype=np.int64)
        up = np.asarray(parents, dtype=np.int64)
        num_nodes = len(tokens)
        if num_nodes == 0 or len(up) != num_nodes:
            raise InvalidTreeError(
                f"a tree needs an anchor and one parent a node: {num_nodes} tokens, {len(up)} parents"
            )
        if up[0] != -1:
            raise InvalidTreeError(f"node 0 is the anchor and has parent -1, not {up[0]}")
        misplaced = np.flatnonzero((up[1:] < 0) | (up[1:] >= np.arange(1, num_nodes)))
        if len(misplaced):
            node = int(misplaced[0]) + 1
            raise InvalidTreeError(f"node {node} has parent {up[node]}, which is not an earlier node")
        bits = np.zeros(num_nodes, np.int64) if sources is None else np.asarray(sources, dtype=np.int64)
        predicted = np.ones(num_nodes, np.float32) if probs is None else np.asarray(probs, dtype=np.float32)
        if bits.shape != tokens.shape or predicted.shape != tokens.shape:
            raise InvalidTreeError(
                f"a tree needs one entry a node: {num_nodes} tokens, {len(bits)} sources, {len(predicted)} probs"
            )
        if np.isnan(predicted).any():
            raise InvalidTreeError(f"node {int(np.isnan(predicted).argmax())} has probability nan, which is no number")
        depths = [0]
        for parent in up[1:].tolist():
            depths.append(depths[parent] + 1)
        return cls(
            token_ids=tokens,
            parents=up,
            depths=np.asarray(depths, dtype=np.int64),
            sources=bits,
            probs=predicted,
        )

    @classmethod
    def anchor_only(cls, token_id: int) -> "TokenTree":
        """The tree of plain decoding: nothing drafted."""
        return cls(np.array([token_id]), np.array([-1]), np.array([0]), np.array([0]), np.array([1], np.float32))

    @classmethod
    def chain(cls, anchor_id: int, draft_ids: Sequence[int], *, source: int) -> "TokenTree":
        """A single path below the anchor; `source` is the sources' bits of every draft node."""
        num_nodes = len(draft_ids) + 1
        return cls.from_parents(
            [anchor_id, *draft_ids],
            range(-1, num_nodes - 1),
            sources=[0] + [source] * (num_nodes - 1),
        )

    @property
    def num_nodes(self) -> int:
        return len(self.token_ids)

    @property
    def num_draft_nodes(self) -> int:
        return len(self.token_ids) - 1

    def ancestor_mask(self) -> BoolArray:
        """[num_nodes, num_nodes] bool: entry (i, j) is true if j is i or an ancestor of i."""
        mask = np.eye(self.num_nodes, dtype=np.bool_)
        for node in range(1, self.num_nodes):
            mask[node] |= mask[self.parents[node]]
        return mask

    def path_probs(self) -> NDArray[np.float64]:
        """[num_nodes] float64: predicted P(node accepted), the product of `probs` from the anchor down."""
        product = [1.0]
        for parent, prob in zip(self.parents[1:].tolist(), self.probs[1:].tolist(), strict=True):
            product.append(product[parent] * prob)
        return np.asarray(product)

    def best(self, num_nodes: int) -> "TokenTree":
        """The tree of the `num_nodes >= 1` nodes with the highest path probability, their order kept.

        Connected by construction: a path probability never grows along a path, and of equals the earlier node,
        which is the parent if one of them is, stays.
        """
        if num_nodes >= self.num_nodes:
            return self
        return self.only(np.sort(np.argsort(-self.path_probs(), kind="stable")[:num_nodes]))

    def within(self, max_depth: int) -> "TokenTree":
        """The tree of the nodes at most `max_depth` deep."""
        if not (self.depths > max_depth).any():
            return self
        return self.only(np.flatnonzero(self.depths <= max_depth))

    def only(self, kept: IntArray) -> "TokenTree":
        """The tree of some nodes: their indices, ascending, the parent of each of them among them."""
        new_index = np.full(self.num_nodes, -1, dtype=np.int64)
        new_index[kept] = np.arange(len(kept))
        parents = self.parents[kept]
        return TokenTree(
            token_ids=self.token_ids[kept],
            # The anchor's parent -1 reads the last entry of `new_index`, so it is set apart.
            parents=np.where(parents < 0, -1, new_index[parents]),
            depths=self.depths[kept],
            sources=self.sources[kept],
            probs=self.probs[kept],
        )

    def path_to(self, node: int) -> list[int]:
        """Node indices from the anchor (excluded) down to `node` (included)."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class TreeBatch:
    """The trees of all sequences of a step, in the order in which the sequences were asked for."""

    trees: tuple[TokenTree, ...]

    def __len__(self) -> int:
        return len(self.trees)

    def __iter__(self) -> Iterator[TokenTree]:
        return iter(self.trees)

    def __getitem__(self, index: int) -> TokenTree:
        return self.trees[index]

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole batch, anchors included: what the step's budget counts."""
        return sum(tree.num_nodes for tree in self.trees)
