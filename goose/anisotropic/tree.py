"""The likeliest tree: candidates in order of the probability of their path, best first.

The expected number of accepted tokens of a tree is the sum of its nodes' path probabilities, and a path probability
never grows along a path. So the N likeliest candidates are connected, and no other tree of N nodes expects more.
Reliable sources grow deep and unreliable ones wide without being told to.

A tree grows node by node, in a lane of the workspace, so that several can grow in turn.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.model import expand
from goose.anisotropic.nodes import (
    add_node,
    locate,
    place_anchor,
    prefetch_further,
    prefetch_inherited,
    prefetch_occurrences,
)
from goose.anisotropic.workspace import (
    DEPTH,
    EXPANSION,
    ID,
    IS_GROWING,
    LOWEST,
    MAX_CANDIDATES,
    MAX_NODES,
    MAX_TREE_NODES,
    NUM_ABOVE,
    NUM_EXPANDED,
    NUM_NODES,
    NUM_QUEUED,
    NUM_SELECTED,
    NUM_TALLIES,
    PARENT,
    PATH_PROB,
    PROB,
    SELECTED,
    SOURCE,
    TOKEN,
    Memory,
    Requests,
    Workspace,
)
from goose.jit import inlined, jit

__all__ = [
    "MIN_PATH_PROBABILITY",
    "begin_tree",
    "grow_tree",
    "locate_growth",
    "prefetch_growth",
    "prefetch_growth_further",
]

# A node less likely than this is not worth verifying, however empty the tree.
MIN_PATH_PROBABILITY = 0.002
# Entries at the head of the queue whose places are known: the next node, and those of which one comes after it.
_NUM_LOCATED = 3
# Path probabilities are counted by the exponent and first two bits of their floating point number: places of a tally.
_SHIFT = 50
_LOWEST_CODE = (1023 << 2) - NUM_TALLIES + 1


@jit
def begin_tree(memory: Memory, requests: Requests, work: Workspace, lane: int, slot: int) -> None:
    """A lane with nothing in it but the anchor, to be selected first."""
    anchor, growth = lane * MAX_NODES, work.growth[lane]
    owner, scope = requests.owners[slot], requests.scopes[slot]
    place_anchor(
        memory.texts, memory.successors, work.nodes, anchor, requests.starts[slot], requests.ends[slot], owner, scope
    )
    work.probs[anchor, PROB] = work.probs[anchor, PATH_PROB] = 1.0
    growth[NUM_NODES] = growth[NUM_ABOVE] = 1
    growth[NUM_SELECTED] = growth[NUM_EXPANDED] = growth[LOWEST] = 0
    work.cuts[lane] = MIN_PATH_PROBABILITY
    tallies = work.tallies[lane]
    tallies[:] = 0
    tallies[NUM_TALLIES - 1] = 1
    growth[NUM_QUEUED] = _push(work.queue_probs[lane], work.queue_nodes[lane], 0, 1.0, anchor)


@inlined
def grow_tree(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    lane: int,
    slot: int,
    threshold: float,
    floor: int,
    max_nodes: int,
    max_depth: int,
    stop_ids: NDArray[np.int64],
) -> bool:
    """Selects one node more and finds what may follow it. Returns whether there was one to select.

    In the end those are selected whose path probability is at least `threshold`, and the best ones up to `floor`
    anyway: at most `max_nodes <= MAX_TREE_NODES` in all, the anchor included, `max_depth` levels below it, and none of
    `stop_ids`, because nothing behind one is ever committed.
    """
    growth, queue_probs, queue_nodes = work.growth[lane], work.queue_probs[lane], work.queue_nodes[lane]
    num_queued, num_selected = growth[NUM_QUEUED], growth[NUM_SELECTED]
    if num_queued == 0 or num_selected == max_nodes or (num_selected >= floor and queue_probs[0] < threshold):
        return False
    nodes, probs = work.nodes, work.probs
    node = int(queue_nodes[0])
    num_queued = _pop(queue_probs, queue_nodes, num_queued)
    nodes[node, SELECTED] = 1
    num_selected += 1
    growth[NUM_QUEUED], growth[NUM_SELECTED] = num_queued, num_selected
    if nodes[node, DEPTH] == max_depth or num_selected == max_nodes:
        return True
    found = expand(memory, requests, work, slot, node, lane * MAX_TREE_NODES + growth[NUM_EXPANDED])
    growth[NUM_EXPANDED] += 1
    first, num_nodes = lane * MAX_NODES, growth[NUM_NODES]
    # No node below the cut can be among the `floor` best: so many above it are known.
    cut, tallies, lowest, num_above = work.cuts[lane], work.tallies[lane], growth[LOWEST], growth[NUM_ABOVE]
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
        new = first + num_nodes
        add_node(nodes, new, node, token, sources)
        probs[new, PROB], probs[new, PATH_PROB] = work.odds[candidate] / work.odds[MAX_CANDIDATES], path_prob
        num_queued = _push(queue_probs, queue_nodes, num_queued, path_prob, new)
        num_nodes += 1
        work.number[0] = path_prob
        place = max(0, (work.number_bits[0] >> _SHIFT) - _LOWEST_CODE)
        tallies[place] += 1
        num_above += 1 if place >= lowest else 0
    while num_above - tallies[lowest] >= floor:
        num_above -= tallies[lowest]
        lowest += 1
        work.number_bits[0] = (lowest + _LOWEST_CODE) << _SHIFT
        cut = max(cut, work.number[0])
    growth[NUM_NODES], growth[NUM_QUEUED], growth[LOWEST], growth[NUM_ABOVE] = num_nodes, num_queued, lowest, num_above
    work.cuts[lane] = cut
    return True


@jit
def locate_growth(memory: Memory, requests: Requests, work: Workspace, lane: int, slot: int) -> None:
    """Finds the places of the node that is selected next, and of those that may come after it."""
    owner, scope = requests.owners[slot], requests.scopes[slot]
    for place in range(min(_NUM_LOCATED, work.growth[lane, NUM_QUEUED])):
        locate(memory.texts, memory.successors, work.nodes, int(work.queue_nodes[lane, place]), owner, scope)


@jit
def prefetch_growth(memory: Memory, work: Workspace, lane: int) -> None:
    """Asks for the text at the occurrences of the node that is selected next."""
    if work.growth[lane, IS_GROWING] and work.growth[lane, NUM_QUEUED] > 0:
        nodes, node = work.nodes, int(work.queue_nodes[lane, 0])
        prefetch_occurrences(memory.texts, nodes, node)
        if nodes[node, DEPTH] > 0:
            above = int(nodes[int(nodes[node, PARENT]), EXPANSION])
            token = int(nodes[node, TOKEN])
            prefetch_inherited(memory.texts, work.own[above], int(work.num_occurrences[above, 0]), token)
            prefetch_inherited(memory.texts, work.pool[above], int(work.num_occurrences[above, 1]), token)


@jit
def prefetch_growth_further(memory: Memory, work: Workspace, lane: int) -> None:
    """Asks for what `prefetch_growth` has made known, a while after it."""
    if work.growth[lane, IS_GROWING] and work.growth[lane, NUM_QUEUED] > 0:
        prefetch_further(memory.texts, work.nodes, int(work.queue_nodes[lane, 0]))


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
