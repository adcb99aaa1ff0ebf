"""What is done for a whole batch in one call: propose, learn from outcomes, commit text."""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.model import expand, learn
from goose.anisotropic.nodes import add_node, locate, place_anchor, prefetch_occurrences
from goose.anisotropic.occurrences import ask_at_anchor, begin_asking, go_on_asking
from goose.anisotropic.recent import note_place
from goose.anisotropic.texts import (
    NO_TOKEN,
    NUM_SUCCESSORS,
    ROW_MARKS,
    TEXT_SCOPE,
    TEXT_TOKEN,
    index_position,
    set_followed,
)
from goose.anisotropic.tree import begin_tree, grow_tree, locate_growth, prefetch_growth, prefetch_growth_further
from goose.anisotropic.workspace import (
    DEPTH,
    ID,
    IS_GROWING,
    LENGTH,
    MAX_NODES,
    MAX_TREE_NODES,
    NEXT,
    NUM_LANES,
    NUM_NODES,
    OWN_TREND,
    PARENT,
    PATH_PROB,
    PROB,
    SELECTED,
    SOURCES,
    STREAK,
    TAU,
    TOKEN,
    TOP_TREND,
    Memory,
    Requests,
    Workspace,
)
from goose.jit import inlined, jit

__all__ = ["build_trees", "commit_tokens", "learn_paths", "move_text"]

# How fast a request's trends and its tau follow the last steps.
_TREND_RATE, _TAU_RATE = 0.06, 0.2
# Links followed ahead of a search at the anchor.
_STEPS_AHEAD = 8


@jit
def build_trees(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    slots: NDArray[np.int64],
    thresholds: NDArray[np.float64],
    floors: NDArray[np.int64],
    max_nodes: NDArray[np.int64],
    max_depths: NDArray[np.int64],
    stop_ids: NDArray[np.int64],
    stop_starts: NDArray[np.int64],
    source_bits: NDArray[np.int64],
    starts: NDArray[np.int64],
    columns: NDArray[np.int64],
    probs: NDArray[np.float32],
    path_probs: NDArray[np.float64],
) -> None:
    """One tree a sequence, see `grow_tree`; sequence i has `stop_ids[stop_starts[i] : stop_starts[i + 1]]`.

    Fills `starts` [num_sequences + 1], where each tree begins; `columns` [4, room]: tokens, parents within the tree,
    depths, and sources as `source_bits` has them; P(node | parent) and P(node).
    """
    total = 0
    for first in range(0, len(slots), NUM_LANES):
        num_trees = min(NUM_LANES, len(slots) - first)
        for lane in range(num_trees):
            begin_tree(memory, requests, work, lane, slots[first + lane])
            work.growth[lane, IS_GROWING] = 1
            ask_at_anchor(memory, requests, work, lane, slots[first + lane], lane * MAX_NODES)
        for lane in range(num_trees):
            begin_asking(memory.texts, work.cursors[lane])
        for _ in range(_STEPS_AHEAD):
            for lane in range(num_trees):
                go_on_asking(memory.texts, work.cursors[lane])
        num_growing = num_trees
        while num_growing > 0:
            num_growing = 0
            for lane in range(num_trees):
                # Of the trees after this one, so that it is at hand when their turns come.
                prefetch_growth(memory, work, (lane + 2) % num_trees)
                prefetch_growth_further(memory, work, (lane + 1) % num_trees)
                if work.growth[lane, IS_GROWING] == 0:
                    continue
                i = first + lane
                stops = stop_ids[stop_starts[i] : stop_starts[i + 1]]
                if grow_tree(
                    memory,
                    requests,
                    work,
                    lane,
                    slots[i],
                    thresholds[i],
                    floors[i],
                    max_nodes[i],
                    max_depths[i],
                    stops,
                ):
                    num_growing += 1
                    locate_growth(memory, requests, work, lane, slots[i])
                else:
                    work.growth[lane, IS_GROWING] = 0
        for lane in range(num_trees):
            starts[first + lane] = total
            total = _write_tree(work, lane, source_bits, columns, probs, path_probs, total)
    starts[len(slots)] = total


@jit
def _write_tree(
    work: Workspace,
    lane: int,
    source_bits: NDArray[np.int64],
    columns: NDArray[np.int64],
    probs: NDArray[np.float32],
    path_probs: NDArray[np.float64],
    start: int,
) -> int:
    """Writes the selected nodes of a lane from place `start` on; returns the first place behind them."""
    places, anchor, end = work.places, lane * MAX_NODES, start
    for made in range(work.growth[lane, NUM_NODES]):
        node = anchor + made
        if work.nodes[node, SELECTED] == 0:
            continue
        places[made] = end - start
        columns[0, end] = work.nodes[node, TOKEN]
        columns[1, end] = -1 if made == 0 else places[int(work.nodes[node, PARENT]) - anchor]
        columns[2, end] = work.nodes[node, DEPTH]
        columns[3, end] = source_bits[int(work.nodes[node, SOURCES])]
        probs[end], path_probs[end] = work.probs[node, PROB], work.probs[node, PATH_PROB]
        end += 1
    return end


@jit
def learn_paths(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    slots: NDArray[np.int64],
    chosen: NDArray[np.int64],
    starts: NDArray[np.int64],
    rate: float,
) -> None:
    """Learns from verified paths, before they are committed: sequence i was at its anchor and chose, node by node,
    `chosen[starts[i] : starts[i + 1]]`. What was known at each node is found again."""
    # Places are asked for two sequences ahead, and the text at them one ahead.
    for ahead in range(len(slots) + 2):
        if ahead < len(slots):
            _place_path(
                memory, requests, work, ahead % NUM_LANES, slots[ahead], chosen[starts[ahead] : starts[ahead + 1]]
            )
        if 1 <= ahead <= len(slots):
            i = ahead - 1
            anchor = i % NUM_LANES * MAX_NODES
            for k in range(1, min(starts[i + 1] - starts[i], MAX_TREE_NODES)):
                prefetch_occurrences(memory.texts, work.nodes, anchor + k)
        if ahead >= 2:
            i = ahead - 2
            _learn_path(memory, requests, work, i % NUM_LANES, slots[i], chosen[starts[i] : starts[i + 1]], rate)


@inlined
def _place_path(
    memory: Memory, requests: Requests, work: Workspace, lane: int, slot: int, chosen: NDArray[np.int64]
) -> None:
    """The nodes of a lane: the anchor and all chosen tokens but the last."""
    texts, successors, nodes, anchor = memory.texts, memory.successors, work.nodes, lane * MAX_NODES
    owner, scope = requests.owners[slot], requests.scopes[slot]
    place_anchor(texts, successors, nodes, anchor, requests.starts[slot], requests.ends[slot], owner, scope)
    for k in range(min(len(chosen), MAX_TREE_NODES) - 1):
        add_node(nodes, anchor + k + 1, anchor + k, chosen[k], 0)
        locate(texts, successors, nodes, anchor + k + 1, owner, scope)


@inlined
def _learn_path(
    memory: Memory, requests: Requests, work: Workspace, lane: int, slot: int, chosen: NDArray[np.int64], rate: float
) -> None:
    adapted, first = requests.adapted, lane * MAX_TREE_NODES
    # Features read them, so they change when the path is done.
    own_trend, top_trend = adapted[slot, OWN_TREND], adapted[slot, TOP_TREND]
    streak = adapted[slot, STREAK]
    for depth in range(min(len(chosen), MAX_TREE_NODES)):
        token = chosen[depth]
        found = expand(memory, requests, work, slot, lane * MAX_NODES + depth, first + depth)
        longest, copied = 0, NO_TOKEN
        for k in range(found.num_own):
            if work.own[first + depth, k, LENGTH] > longest:
                longest, copied = int(work.own[first + depth, k, LENGTH]), int(work.own[first + depth, k, NEXT])
        # A match of one token is right too rarely to say anything about the text.
        if longest >= 2:
            own_trend += _TREND_RATE * ((1.0 if copied == token else 0.0) - own_trend)
        best, top = -1.0, NO_TOKEN
        for k in range(found.num_candidates):
            if work.odds[k] > best:
                best, top = work.odds[k], int(work.candidates[k, ID])
        top_trend += _TREND_RATE * ((1.0 if top == token else 0.0) - top_trend)
        streak = streak + 1.0 if longest > 0 and copied == token else 0.0
        learn(memory, requests, work, slot, depth, found, token, rate)
    adapted[slot, OWN_TREND], adapted[slot, TOP_TREND], adapted[slot, STREAK] = own_trend, top_trend, streak


@jit
def commit_tokens(
    memory: Memory,
    requests: Requests,
    slots: NDArray[np.int64],
    token_ids: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> None:
    """Appends `token_ids[starts[i] : starts[i + 1]]` to the text of sequence i.

    Outputs, and the n-grams that lead into them, become visible to the scope.
    """
    for i in range(len(slots)):
        _commit(memory, requests, slots[i], token_ids[starts[i] : starts[i + 1]])


@inlined
def _commit(memory: Memory, requests: Requests, slot: int, token_ids: NDArray[np.int64]) -> None:
    texts = memory.texts
    start, owner, scope = requests.starts[slot], requests.owners[slot], requests.scopes[slot]
    for token in token_ids:
        end = requests.ends[slot]
        texts.records[end + 1, TEXT_TOKEN] = token
        note_place(requests.recent, slot, token, end + 1 - start)
        pooled = end + 1 >= requests.output_starts[slot]
        if end >= start:
            if pooled:
                texts.records[end, TEXT_SCOPE] = scope
            index_position(texts, end, start, owner, scope, True, pooled)
            set_followed(texts, end)
        requests.ends[slot] = end + 1
    if len(token_ids) > 0 and requests.ends[slot] >= requests.output_starts[slot]:
        requests.adapted[slot, TAU] += _TAU_RATE * (len(token_ids) - requests.adapted[slot, TAU])


@jit
def move_text(memory: Memory, requests: Requests, slot: int, new_start: int, new_owner: int) -> None:
    """Copies a request's text to a new segment and indexes it there; the caller wipes the old one."""
    texts = memory.texts
    old_start, num_tokens = requests.starts[slot], requests.ends[slot] + 1 - requests.starts[slot]
    output_start = requests.output_starts[slot] - old_start + new_start
    scope = requests.scopes[slot]
    for i in range(num_tokens):
        old, new = old_start + i, new_start + i
        for column in (TEXT_TOKEN, TEXT_SCOPE, ROW_MARKS):
            texts.records[new, column] = texts.records[old, column]
        for rank in range(NUM_SUCCESSORS):
            texts.rows[new, rank] = texts.rows[old, rank]
        if i > 0:
            index_position(texts, new - 1, new_start, new_owner, scope, True, new >= output_start)
    requests.starts[slot], requests.ends[slot] = new_start, new_start + num_tokens - 1
    requests.output_starts[slot], requests.owners[slot] = output_start, new_owner
