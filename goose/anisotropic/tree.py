"""The likeliest tree: candidates in order of the probability of their path, best first.

The expected number of accepted tokens of a tree is the sum of its nodes' path probabilities, and a path probability
never grows along a path. So the N likeliest candidates are connected, and no other tree of N nodes expects more.
Reliable sources grow deep and unreliable ones wide without being told to.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.model import expand
from goose.anisotropic.workspace import MAX_NODES, MAX_TREE_NODES, Memory, Requests, Workspace
from goose.jit import jit

__all__ = ["MIN_PATH_PROBABILITY", "build_tree", "flatten"]

# A node less likely than this is not worth verifying, however empty the tree.
MIN_PATH_PROBABILITY = 0.002


@jit
def build_tree(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    sequence: int,
    slot: int,
    threshold: float,
    floor: int,
    max_nodes: int,
    max_depth: int,
    stop_ids: NDArray[np.int64],
) -> None:
    """Selects the nodes whose path probability is at least `threshold`, and the best ones up to `floor` anyway.

    At most `max_nodes <= MAX_TREE_NODES` in all, the anchor included, `max_depth` levels below it, and none of
    `stop_ids`, because nothing behind one is ever committed.
    """
    anchor = sequence * MAX_NODES
    expansion = sequence * MAX_TREE_NODES
    work.paths.token_ids[anchor] = memory.texts.token_ids[requests.ends[slot]]
    work.paths.parents[anchor] = -1
    work.paths.depths[anchor] = work.sources[anchor] = 0
    work.probs[anchor] = work.path_probs[anchor] = 1.0
    work.expansions[anchor] = -1
    work.selected[anchor] = False
    num_nodes, num_selected = 1, 0
    num_queued = _push(work.queue_probs, work.queue_nodes, 0, 1.0, anchor)
    while num_queued > 0 and num_selected < max_nodes:
        if num_selected >= floor and work.queue_probs[0] < threshold:
            break
        node = int(work.queue_nodes[0])
        num_queued = _pop(work.queue_probs, work.queue_nodes, num_queued)
        work.selected[node] = True
        num_selected += 1
        if work.paths.depths[node] == max_depth or num_selected == max_nodes:
            continue
        expand(memory, requests, work, slot, node, expansion)
        least = threshold if num_selected >= floor else min(threshold, MIN_PATH_PROBABILITY)
        for candidate in range(work.candidates.counts[expansion]):
            prob = work.candidate_probs[expansion, candidate]
            path_prob = work.path_probs[node] * prob
            token = work.candidates.ids[expansion, candidate]
            if path_prob < least or num_nodes == MAX_NODES or _contains(stop_ids, token):
                continue
            child = anchor + num_nodes
            num_nodes += 1
            work.paths.token_ids[child] = token
            work.paths.parents[child] = node
            work.paths.depths[child] = work.paths.depths[node] + 1
            work.sources[child] = work.candidates.sources[expansion, candidate]
            work.probs[child] = prob
            work.path_probs[child] = path_prob
            work.expansions[child] = -1
            work.selected[child] = False
            num_queued = _push(work.queue_probs, work.queue_nodes, num_queued, path_prob, child)
        expansion += 1
    work.num_nodes[sequence] = num_nodes


@jit
def _contains(ids: NDArray[np.int64], token: int) -> bool:
    for known in ids:  # noqa: SIM110 (numba compiles no generator expressions)
        if known == token:
            return True
    return False


@jit
def _push(probs: NDArray[np.float64], nodes: NDArray[np.int32], count: int, prob: float, node: int) -> int:
    """Adds to the heap of `count` entries, largest probability first; returns the new count."""
    place = count
    while place > 0:
        above = (place - 1) >> 1
        if probs[above] >= prob:
            break
        probs[place], nodes[place] = probs[above], nodes[above]
        place = above
    probs[place], nodes[place] = prob, node
    return count + 1


@jit
def _pop(probs: NDArray[np.float64], nodes: NDArray[np.int32], count: int) -> int:
    """Removes the first entry of the heap; returns the new count."""
    count -= 1
    prob, node = probs[count], nodes[count]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and probs[below + 1] > probs[below]:
            below += 1
        if prob >= probs[below]:
            break
        probs[place], nodes[place] = probs[below], nodes[below]
        place = below
    probs[place], nodes[place] = prob, node
    return count


@jit
def flatten(
    work: Workspace, num_sequences: int, nodes: NDArray[np.int64], parents: NDArray[np.int64], starts: NDArray[np.int64]
) -> int:
    """The selected nodes of all sequences, one tree after the other, parents first; returns their number.

    Fills `nodes` with their numbers in the workspace, `parents` with the parent's place in its own tree (-1: anchor),
    and `starts` [num_sequences + 1] with where each tree begins.
    """
    # Places in the tree, by node.
    places = np.empty(MAX_NODES, np.int64)
    total = 0
    for sequence in range(num_sequences):
        starts[sequence] = total
        anchor = sequence * MAX_NODES
        for node in range(anchor, anchor + work.num_nodes[sequence]):
            if work.selected[node]:
                places[node - anchor] = total - starts[sequence]
                nodes[total] = node
                parents[total] = -1 if node == anchor else places[work.paths.parents[node] - anchor]
                total += 1
    starts[num_sequences] = total
    return total
