"""Builds the trees of a step, side by side where more threads than one are allowed.

Trees of a step read what is known and change nothing of it, so they come out the same on any number of threads.
Compiled steps run without the interpreter's lock; as plain Python the threads would take turns.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.budget import TreeLimits
from goose.anisotropic.steps import build_trees
from goose.anisotropic.workspace import Memory, Requests, Workspace, new_workspace
from goose.tree import IntArray, TokenTree

__all__ = ["TreeBuilders"]

# Fewer trees than this a thread are not worth waking it, and more threads share too little of any batch.
_MIN_TREES, _MOST_THREADS = 16, 4


class TreeBuilders:
    """One workspace a thread, of which at most four are used. Not thread-safe itself."""

    def __init__(self, num_threads: int) -> None:
        num_threads = min(num_threads, _MOST_THREADS)
        self.workspaces: list[Workspace] = [new_workspace() for _ in range(num_threads)]
        self._others = ThreadPoolExecutor(num_threads - 1, "goose-draft") if num_threads > 1 else None

    def build(
        self,
        memory: Memory,
        requests: Requests,
        slots: IntArray,
        limits: TreeLimits,
        max_depths: IntArray,
        stop_ids: Sequence[IntArray],
        source_bits: IntArray,
    ) -> tuple[list[TokenTree], NDArray[np.float64]]:
        """One tree a slot, and P(node) of all their nodes one after the other.

        `stop_ids` has one array a slot; `source_bits` [8] translates the bits of `goose.anisotropic.candidates`.
        """
        num_parts = min(len(self.workspaces), max(1, len(slots) // _MIN_TREES))
        bounds = [len(slots) * part // num_parts for part in range(num_parts + 1)]

        def part(number: int) -> tuple[list[TokenTree], NDArray[np.float64]]:
            chosen = slice(bounds[number], bounds[number + 1])
            return _built(
                memory,
                requests,
                self.workspaces[number],
                slots[chosen],
                limits.of(chosen),
                max_depths[chosen],
                stop_ids[chosen],
                source_bits,
            )

        if self._others is None or num_parts == 1:
            return part(0)
        others = [self._others.submit(part, number) for number in range(1, num_parts)]
        try:
            trees, path_probs = part(0)
        finally:
            # Whatever happened here, nobody may read on when the caller changes what is read.
            wait(others)
        found = [path_probs]
        for other in others:
            more, path_probs = other.result()
            trees += more
            found.append(path_probs)
        return trees, np.concatenate(found)


def _built(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    slots: IntArray,
    limits: TreeLimits,
    max_depths: IntArray,
    stop_ids: Sequence[IntArray],
    source_bits: IntArray,
) -> tuple[list[TokenTree], NDArray[np.float64]]:
    starts, room = np.empty(len(slots) + 1, np.int64), int(limits.max_nodes.sum())
    columns, probs, path_probs = np.empty((4, room), np.int64), np.empty(room, np.float32), np.empty(room)
    build_trees(
        memory,
        requests,
        work,
        slots,
        limits.thresholds,
        limits.floors,
        limits.max_nodes,
        max_depths,
        np.concatenate(stop_ids),
        np.cumsum([0] + [len(ids) for ids in stop_ids]),
        source_bits,
        starts,
        columns,
        probs,
        path_probs,
    )
    total = int(starts[-1])
    token_ids, parents, depths, sources = columns[:, :total].copy()
    kept_probs = probs[:total].copy()
    trees = [
        TokenTree(token_ids[i:j], parents[i:j], depths[i:j], sources[i:j], kept_probs[i:j])
        for i, j in pairwise(starts.tolist())
    ]
    return trees, path_probs[:total]
