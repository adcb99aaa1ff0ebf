"""The likeliest tree: candidates in order of the probability of their path, best first.

The expected number of accepted tokens of a tree is the sum of its nodes' path probabilities, and a path probability
never grows along a path. So the N likeliest candidates are connected, and no other tree of N nodes expects more.
Reliable sources grow deep and unreliable ones wide without being told to.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.model import expand
from goose.anisotropic.nodes import add_node, place_anchor, prefetch_occurrences
from goose.anisotropic.workspace import (
    DEPTH,
    ID,
    MAX_CANDIDATES,
    MAX_NODES,
    NUM_TALLIES,
    PATH_PROB,
    PROB,
    SELECTED,
    SOURCE,
    Memory,
    Requests,
    Workspace,
)
from goose.jit import jit

__all__ = ["MIN_PATH_PROBABILITY", "build_tree"]

# A node less likely than this is not worth verifying, however empty the tree.
MIN_PATH_PROBABILITY = 0.002
# Path probabilities are counted by the exponent and first two bits of their floating point number: places of a tally.
_SHIFT = 50
_LOWEST_CODE = (1023 << 2) - NUM_TALLIES + 1


@jit
def build_tree(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    slot: int,
    threshold: float,
    floor: int,
    max_nodes: int,
    max_depth: int,
    stop_ids: NDArray[np.int64],
) -> int:
    """Selects the nodes whose path probability is at least `threshold`, and the best ones up to `floor` anyway.

    At most `max_nodes <= MAX_TREE_NODES` in all, the anchor included, `max_depth` levels below it, and none of
    `stop_ids`, because nothing behind one is ever committed. Returns the number of nodes in the workspace.
    """
    nodes, probs = work.nodes, work.probs
    owner, scope = requests.owners[slot], requests.scopes[slot]
    place_anchor(memory.texts, memory.successors, nodes, requests.starts[slot], requests.ends[slot], owner, scope)
    probs[0, PROB] = probs[0, PATH_PROB] = 1.0
    num_nodes, num_selected, expansion = 1, 0, 0
    # No node below the cut can be among the `floor` best: so many above it are known.
    lowest, num_above, cut = 0, 1, MIN_PATH_PROBABILITY
    work.tallies[:] = 0
    work.tallies[NUM_TALLIES - 1] = 1
    num_queued = _push(work.queue_probs, work.queue_nodes, 0, 1.0, 0)
    while num_queued > 0 and num_selected < max_nodes:
        if num_selected >= floor and work.queue_probs[0] < threshold:
            break
        node = int(work.queue_nodes[0])
        num_queued = _pop(work.queue_probs, work.queue_nodes, num_queued)
        nodes[node, SELECTED] = 1
        num_selected += 1
        if nodes[node, DEPTH] == max_depth or num_selected == max_nodes:
            continue
        if num_queued > 0:
            prefetch_occurrences(memory.texts, nodes, int(work.queue_nodes[0]))
        found = expand(memory, requests, work, slot, node, expansion)
        expansion += 1
        least = threshold if num_selected >= floor else min(threshold, cut)
        above = probs[node, PATH_PROB] / work.odds[MAX_CANDIDATES]
        for candidate in range(found.num_candidates):
            path_prob = above * work.odds[candidate]
            if path_prob < least or num_nodes == MAX_NODES:
                continue
            token = int(work.candidates[candidate, ID])
            if _contains(stop_ids, token):
                continue
            sources = int(work.candidates[candidate, SOURCE])
            add_node(memory.texts, memory.successors, nodes, num_nodes, node, token, sources, owner, scope)
            probs[num_nodes, PROB] = work.odds[candidate] / work.odds[MAX_CANDIDATES]
            probs[num_nodes, PATH_PROB] = path_prob
            num_queued = _push(work.queue_probs, work.queue_nodes, num_queued, path_prob, num_nodes)
            num_nodes += 1
            work.number[0] = path_prob
            place = max(0, (work.number_bits[0] >> _SHIFT) - _LOWEST_CODE)
            work.tallies[place] += 1
            num_above += 1 if place >= lowest else 0
        while num_above - work.tallies[lowest] >= floor:
            num_above -= work.tallies[lowest]
            lowest += 1
            work.number_bits[0] = (lowest + _LOWEST_CODE) << _SHIFT
            cut = max(cut, work.number[0])
    work.num_nodes[0] = num_nodes
    return num_nodes


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
