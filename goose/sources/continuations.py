"""What followed the occurrences of a pattern, as a trie with counts: p(child) = count(child) / count(parent).

The probability of a path is a product of such fractions, in which all counts but the last and the first cancel: count
of the node over count of the pattern. So the likeliest nodes are those with the highest counts, and no search is
needed.
"""

from dataclasses import dataclass

import numpy as np

from goose.tree import FloatArray, IntArray

__all__ = ["CountedTrie"]


@dataclass(frozen=True, slots=True, eq=False)
class CountedTrie:
    """Nodes level by level, of one level in the order of their tokens' sorted paths. The root is not a node."""

    # [num_nodes] int64
    token_ids: IntArray
    # [num_nodes] int64; -1: below the root
    parents: IntArray
    # [num_nodes] int64; 1 below the root
    depths: IntArray
    # [num_nodes] int64: continuations that lead through the node
    counts: IntArray
    # [num_nodes] int64: the first continuation that does
    first: IntArray
    num_continuations: int

    @classmethod
    def of(cls, continuations: IntArray) -> "CountedTrie":
        """Of `[num_continuations, depth]` tokens, -1 behind the end of a shorter one. At least one of each."""
        num_rows, depth = continuations.shape
        # As bytes, most significant first, rows sort in one comparison each; ends sort before tokens.
        keys = np.ascontiguousarray(continuations + 1, dtype=">u4").view(f"S{4 * depth}").ravel()
        order = np.argsort(keys, kind="stable")
        # [depth, num_continuations]: so that a flat index runs along one level
        tokens = continuations[order].T
        real = tokens >= 0
        starts = real.copy()
        # A node starts where the path so far is not that of the row before.
        starts[:, 1:] &= ~np.logical_and.accumulate(tokens[:, 1:] == tokens[:, :-1], axis=0)
        at = np.flatnonzero(starts)
        levels, rows = np.divmod(at, num_rows)
        node_of = np.cumsum(starts).reshape(depth, num_rows) - 1
        through = np.cumsum(real)
        before = through[at] - 1
        recency = np.where(real, order, num_rows).ravel()
        return cls(
            token_ids=tokens[levels, rows],
            parents=np.where(levels > 0, node_of[levels - 1, rows], -1),
            depths=levels + 1,
            counts=np.diff(before, append=through[-1]),
            first=np.minimum.reduceat(recency, at) if len(at) else at,
            num_continuations=num_rows,
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def path_probs(self) -> FloatArray:
        """[num_nodes] float32."""
        return (self.counts / self.num_continuations).astype(np.float32)

    def probs(self) -> FloatArray:
        """[num_nodes] float32: P(node | parent)."""
        above = np.where(self.parents < 0, self.num_continuations, self.counts[self.parents])
        return (self.counts / above).astype(np.float32)

    def likeliest(self, num_nodes: int, min_path_prob: float) -> "CountedTrie":
        """The subtree of the likeliest nodes; of equals the less deep, then that of the earlier continuation."""
        order = np.lexsort((self.first, self.depths, -self.counts))[:num_nodes]
        kept = np.sort(order[self.counts[order] >= min_path_prob * self.num_continuations])
        new_index = np.full(len(self) + 1, -1, dtype=np.int64)
        new_index[kept] = np.arange(len(kept))
        return CountedTrie(
            token_ids=self.token_ids[kept],
            # A parent of -1 reads the last entry, which is no node.
            parents=new_index[self.parents[kept]],
            depths=self.depths[kept],
            counts=self.counts[kept],
            first=self.first[kept],
            num_continuations=self.num_continuations,
        )
