"""What is done for a whole batch in one call: propose, learn from outcomes, commit text, file harvested rows."""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.model import learn
from goose.anisotropic.occurrences import following
from goose.anisotropic.successors import learn_row, row_to_buckets
from goose.anisotropic.texts import NO_TOKEN, NUM_SUCCESSORS, index_position, set_followed
from goose.anisotropic.tree import build_tree
from goose.anisotropic.workspace import OWN_TREND, STREAK, TAU, TOP_TREND, Memory, Requests, Workspace
from goose.jit import jit

__all__ = ["add_rows", "build_trees", "commit_tokens", "learn_path", "move_text"]

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
) -> None:
    """One tree a sequence, see `build_tree`; sequence i has `stop_ids[stop_starts[i] : stop_starts[i + 1]]`."""
    for i in range(len(slots)):
        stops = stop_ids[stop_starts[i] : stop_starts[i + 1]]
        build_tree(memory, requests, work, i, slots[i], thresholds[i], floors[i], max_nodes[i], max_depths[i], stops)


@jit
def learn_path(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    slot: int,
    nodes: NDArray[np.int64],
    chosen: NDArray[np.int64],
    rate: float,
) -> None:
    """Learns from the nodes of a verified path and what the target chose at each. To be called before the commit."""
    adapted, end = requests.adapted[slot], requests.ends[slot]
    for i in range(len(nodes)):
        node, token = nodes[i], chosen[i]
        expansion = int(work.expansions[node])
        if expansion < 0:
            continue
        longest, copied = 0, NO_TOKEN
        for k in range(work.num_own[expansion]):
            if work.own_lengths[expansion, k] > longest:
                longest = int(work.own_lengths[expansion, k])
                copied = following(memory.texts.token_ids, work.paths, node, int(work.own_at[expansion, k]), end)
        # A match of one token is right too rarely to say anything about the text.
        if longest >= 2:
            adapted[OWN_TREND] += _TREND_RATE * ((1.0 if copied == token else 0.0) - adapted[OWN_TREND])
        best, top = -1.0, NO_TOKEN
        for k in range(work.candidates.counts[expansion]):
            if work.candidate_probs[expansion, k] > best:
                best, top = work.candidate_probs[expansion, k], int(work.candidates.ids[expansion, k])
        adapted[TOP_TREND] += _TREND_RATE * ((1.0 if top == token else 0.0) - adapted[TOP_TREND])
        adapted[STREAK] = adapted[STREAK] + 1.0 if longest > 0 and copied == token else 0.0
        learn(memory, requests, work, slot, expansion, token, rate)


@jit
def commit_tokens(memory: Memory, requests: Requests, slot: int, token_ids: NDArray[np.int32]) -> None:
    """Appends to a request's text. Outputs, and the n-grams that lead into them, become visible to the scope."""
    texts = memory.texts
    start, owner, scope = requests.starts[slot], requests.owners[slot], requests.scopes[slot]
    for token in token_ids:
        end = requests.ends[slot]
        texts.token_ids[end + 1] = token
        pooled = end + 1 >= requests.output_starts[slot]
        if end >= start:
            if pooled:
                texts.scopes[end] = scope
            index_position(texts, end, start, owner, scope, True, pooled)
            set_followed(texts, end)
        requests.ends[slot] = end + 1
    if requests.ends[slot] >= requests.output_starts[slot]:
        adapted = requests.adapted[slot]
        adapted[TAU] += _TAU_RATE * (len(token_ids) - adapted[TAU])


@jit
def add_rows(
    memory: Memory,
    requests: Requests,
    slots: NDArray[np.int64],
    positions: NDArray[np.int64],
    token_ids: NDArray[np.int32],
    previous_ids: NDArray[np.int32],
    top_ids: NDArray[np.int32],
    top_probs: NDArray[np.float32],
    scope_without_request: int,
) -> None:
    """Files harvested rows; slot -1: of no live request, position -1: of a node that was not committed."""
    texts = memory.texts
    buckets = np.zeros(NUM_SUCCESSORS, np.uint8)
    for i in range(len(slots)):
        slot = slots[i]
        scope = scope_without_request if slot < 0 else requests.scopes[slot]
        if scope <= 0:
            continue
        rest = row_to_buckets(top_ids[i], top_probs[i], buckets)
        committed, before = False, NO_TOKEN
        if slot >= 0 and positions[i] >= 0:
            at = requests.starts[slot] + positions[i]
            if at <= requests.ends[slot] and texts.token_ids[at] == token_ids[i]:
                committed = True
                for rank in range(NUM_SUCCESSORS):
                    if rank < top_ids.shape[1]:
                        texts.row_ids[at, rank] = top_ids[i, rank]
                    texts.row_buckets[at, rank] = buckets[rank]
                texts.row_rests[at] = rest
                set_followed(texts, at)
                if positions[i] >= 2:
                    before = int(texts.token_ids[at - 2])
        learn_row(
            memory.successors,
            int(token_ids[i]),
            int(previous_ids[i]),
            before,
            scope,
            top_ids[i],
            top_probs[i],
            buckets,
            rest,
            committed,
        )


@jit
def move_text(memory: Memory, requests: Requests, slot: int, new_start: int, new_owner: int) -> None:
    """Copies a request's text to a new segment and indexes it there; the caller wipes the old one."""
    texts = memory.texts
    old_start, num_tokens = requests.starts[slot], requests.ends[slot] + 1 - requests.starts[slot]
    output_start = requests.output_starts[slot] - old_start + new_start
    scope = requests.scopes[slot]
    for i in range(num_tokens):
        old, new = old_start + i, new_start + i
        texts.token_ids[new] = texts.token_ids[old]
        texts.scopes[new] = texts.scopes[old]
        texts.row_ids[new] = texts.row_ids[old]
        texts.row_buckets[new] = texts.row_buckets[old]
        texts.row_rests[new] = texts.row_rests[old]
        texts.followed[new] = texts.followed[old]
        if i > 0:
            index_position(texts, new - 1, new_start, new_owner, scope, True, new >= output_start)
    requests.starts[slot], requests.ends[slot] = new_start, new_start + num_tokens - 1
    requests.output_starts[slot], requests.owners[slot] = output_start, new_owner
