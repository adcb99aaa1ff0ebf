"""What is done for a whole batch in one call: propose, learn from outcomes, commit text."""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.model import expand, learn
from goose.anisotropic.nodes import add_node, place_anchor
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
from goose.anisotropic.tree import build_tree
from goose.anisotropic.workspace import (
    DEPTH,
    ID,
    LENGTH,
    MAX_TREE_NODES,
    NEXT,
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
from goose.jit import jit

__all__ = ["build_trees", "commit_tokens", "learn_paths", "move_text"]

# How fast a request's trends and its tau follow the last steps.
_TREND_RATE, _TAU_RATE = 0.06, 0.2


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
    """One tree a sequence, see `build_tree`; sequence i has `stop_ids[stop_starts[i] : stop_starts[i + 1]]`.

    Fills `starts` [num_sequences + 1], where each tree begins; `columns` [4, room]: tokens, parents within the tree,
    depths, and sources as `source_bits` has them; P(node | parent) and P(node).
    """
    places = work.places
    total = 0
    for i in range(len(slots)):
        stops = stop_ids[stop_starts[i] : stop_starts[i + 1]]
        num_nodes = build_tree(
            memory, requests, work, slots[i], thresholds[i], floors[i], max_nodes[i], max_depths[i], stops
        )
        starts[i] = total
        for node in range(num_nodes):
            if work.nodes[node, SELECTED] == 0:
                continue
            places[node] = total - starts[i]
            columns[0, total] = work.nodes[node, TOKEN]
            columns[1, total] = -1 if node == 0 else places[int(work.nodes[node, PARENT])]
            columns[2, total] = work.nodes[node, DEPTH]
            columns[3, total] = source_bits[int(work.nodes[node, SOURCES])]
            probs[total], path_probs[total] = work.probs[node, PROB], work.probs[node, PATH_PROB]
            total += 1
    starts[len(slots)] = total


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
    for i in range(len(slots)):
        tokens = chosen[starts[i] : starts[i + 1]]
        _learn_path(memory, requests, work, slots[i], tokens[:MAX_TREE_NODES], rate)


@jit
def _learn_path(
    memory: Memory, requests: Requests, work: Workspace, slot: int, chosen: NDArray[np.int64], rate: float
) -> None:
    adapted, nodes = requests.adapted, work.nodes
    # Features read them, so they change when the path is done.
    own_trend, top_trend = adapted[slot, OWN_TREND], adapted[slot, TOP_TREND]
    streak = adapted[slot, STREAK]
    owner, scope = requests.owners[slot], requests.scopes[slot]
    place_anchor(memory.texts, memory.successors, nodes, requests.starts[slot], requests.ends[slot], owner, scope)
    for node in range(len(chosen)):
        token = chosen[node]
        found = expand(memory, requests, work, slot, node, node)
        longest, copied = 0, NO_TOKEN
        for k in range(found.num_own):
            if work.own[node, k, LENGTH] > longest:
                longest, copied = int(work.own[node, k, LENGTH]), int(work.own[node, k, NEXT])
        # A match of one token is right too rarely to say anything about the text.
        if longest >= 2:
            own_trend += _TREND_RATE * ((1.0 if copied == token else 0.0) - own_trend)
        best, top = -1.0, NO_TOKEN
        for k in range(found.num_candidates):
            if work.odds[k] > best:
                best, top = work.odds[k], int(work.candidates[k, ID])
        top_trend += _TREND_RATE * ((1.0 if top == token else 0.0) - top_trend)
        streak = streak + 1.0 if longest > 0 and copied == token else 0.0
        learn(memory, requests, work, slot, node, found, token, rate)
        if node + 1 < len(chosen):
            add_node(memory.texts, memory.successors, nodes, node + 1, node, token, 0, owner, scope)
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


@jit
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
