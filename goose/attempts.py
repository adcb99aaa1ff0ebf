"""What draft nodes were tried and accepted in a batch of verified trees: counted in one pass, as compiled code.

A node behind a rejection was never tried, so only *reached* nodes count as attempts: their parent was accepted or is
the anchor. A node's *rank* is how many of its siblings from the same source stand before it. Knows nothing of what is
kept of the counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.jit import jit
from goose.tree import IntArray, TokenTree

__all__ = ["DEPTH_EDGES", "NUM_POSITIONS", "RANK_EDGES", "Attempts", "count_attempts"]

# First depth of each depth bucket and first rank of each rank bucket; the last bucket is open.
DEPTH_EDGES = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65)
RANK_EDGES = (0, 1, 2, 3, 5, 8)
# Places in the draft; the last one also takes what lies behind it.
NUM_POSITIONS = 128
_ATTEMPTED, _ACCEPTED = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class Attempts:
    """Of each pair of counts the first is of attempts, the second of accepts."""

    # [num_sources, 2, num_depth_buckets, num_rank_buckets] int64
    by_source: NDArray[np.int64]
    # [2, NUM_POSITIONS] int64: at depth position + 1; a tree tries a place once, by however many siblings
    by_position: NDArray[np.int64]
    # [num_trees, num_sources, 2] int64
    by_tree: NDArray[np.int64]


def count_attempts(trees: Sequence[TokenTree], accepted_nodes: Sequence[IntArray], num_sources: int) -> Attempts:
    """`accepted_nodes[i]` are the committed nodes of tree i's path, anchor excluded. A node of two sources counts for
    both. Raises ValueError if there is no tree, or one is none, or has no such nodes.
    """
    starts = np.cumsum([0] + [len(tree.token_ids) for tree in trees])
    parents, depths, sources = (
        np.concatenate([getattr(tree, name) for tree in trees], dtype=np.int64)
        for name in ("parents", "depths", "sources")
    )
    accepted = np.concatenate(accepted_nodes, dtype=np.int64)
    accepted_starts = np.cumsum([0] + [len(nodes) for nodes in accepted_nodes])
    if not len(parents) == len(depths) == len(sources) == starts[-1] or len(accepted_nodes) != len(trees):
        raise ValueError("trees' arrays, or those of their accepted nodes, differ in length")
    attempts = Attempts(
        by_source=np.zeros((num_sources, 2, len(DEPTH_EDGES), len(RANK_EDGES)), np.int64),
        by_position=np.zeros((2, NUM_POSITIONS), np.int64),
        by_tree=np.zeros((len(trees), num_sources, 2), np.int64),
    )
    faulty = _count(
        starts,
        parents,
        depths,
        sources,
        accepted,
        accepted_starts,
        np.zeros(len(parents), np.int64),
        np.zeros((len(parents), num_sources), np.int64),
        np.zeros(NUM_POSITIONS, np.int64),
        attempts.by_source,
        attempts.by_position,
        attempts.by_tree,
    )
    if faulty >= 0:
        raise ValueError(f"tree {faulty} is no tree, or has no nodes {accepted_nodes[faulty].tolist()}")
    return attempts


@jit
def _count(
    starts: IntArray,
    parents: IntArray,
    depths: IntArray,
    sources: IntArray,
    accepted: IntArray,
    accepted_starts: IntArray,
    on_path: IntArray,
    num_siblings: IntArray,
    tried_by: IntArray,
    by_source: IntArray,
    by_position: IntArray,
    by_tree: IntArray,
) -> int:
    """Adds to the last three; those before, `on_path` [num_nodes], `num_siblings` [num_nodes, num_sources] and
    `tried_by` [NUM_POSITIONS], are scratch of zeros. Returns the first tree that is wrong, -1 if none is.
    """
    for tree in range(len(starts) - 1):
        first, end = starts[tree], starts[tree + 1]
        if first == end:
            return tree
        on_path[first] = 1
        for node in accepted[accepted_starts[tree] : accepted_starts[tree + 1]]:
            if not 0 < node < end - first:
                return tree
            on_path[first + node] = 1
        for at in range(first + 1, end):
            parent, depth = first + parents[at], depths[at]
            if not first <= parent < at or depth < 1:
                return tree
            if on_path[parent] == 0:
                continue
            place = min(depth, NUM_POSITIONS) - 1
            if tried_by[place] != tree + 1:
                tried_by[place] = tree + 1
                by_position[_ATTEMPTED, place] += 1
            by_position[_ACCEPTED, place] += on_path[at]
            depth_bucket = _bucket(DEPTH_EDGES, depth)
            for source in range(by_tree.shape[1]):
                if sources[at] >> source & 1 == 0:
                    continue
                rank_bucket = _bucket(RANK_EDGES, num_siblings[parent, source])
                num_siblings[parent, source] += 1
                by_source[source, _ATTEMPTED, depth_bucket, rank_bucket] += 1
                by_source[source, _ACCEPTED, depth_bucket, rank_bucket] += on_path[at]
                by_tree[tree, source, _ATTEMPTED] += 1
                by_tree[tree, source, _ACCEPTED] += on_path[at]
    return -1


@jit
def _bucket(edges: tuple[int, ...], number: int) -> int:
    """The last bucket that begins at the number or below."""
    bucket = 0
    while bucket + 1 < len(edges) and edges[bucket + 1] <= number:
        bucket += 1
    return bucket
