"""Files the target's rows that a step has harvested: at their places in the texts, and by the tokens before them."""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.successors import is_filed, learn_row, look_ahead, row_to_buckets
from goose.anisotropic.texts import NO_TOKEN, NUM_SUCCESSORS, ROW_MARKS, TEXT_TOKEN, Texts, packed, set_followed
from goose.anisotropic.workspace import NUM_AHEAD, Memory, Requests, Workspace
from goose.jit import inlined, jit

__all__ = ["add_rows"]


@jit
def add_rows(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    slots: NDArray[np.int64],
    positions: NDArray[np.int64],
    token_ids: NDArray[np.int64],
    previous_ids: NDArray[np.int64],
    top_ids: NDArray[np.int64],
    top_probs: NDArray[np.float32],
    scope_without_request: int,
) -> None:
    """`slots` and `positions` are -1 where a row has no request, or was not committed; a scope of 0 takes no rows.

    Most rows of a step are of rejected nodes whose tokens have records already: those are passed over.
    """
    successors, texts = memory.successors, memory.texts
    for i in range(len(slots)):
        if i % NUM_AHEAD == 0:
            for ahead in range(i, min(i + NUM_AHEAD, len(slots))):
                scope = max(1, scope_without_request if slots[ahead] < 0 else requests.scopes[slots[ahead]])
                look_ahead(
                    successors,
                    token_ids[ahead],
                    previous_ids[ahead],
                    scope,
                    slots[ahead] >= 0 and positions[ahead] >= 0,
                    work.ahead[ahead % NUM_AHEAD],
                )
        slot = slots[i]
        scope = scope_without_request if slot < 0 else requests.scopes[slot]
        if scope <= 0:
            continue
        at = -1
        if slot >= 0 and positions[i] >= 0:
            at = requests.starts[slot] + positions[i]
            if at > requests.ends[slot] or texts.records[at, TEXT_TOKEN] != token_ids[i]:
                at = -1
        if at < 0 and is_filed(successors, work.ahead[i % NUM_AHEAD]):
            continue
        rest = row_to_buckets(top_ids[i], top_probs[i], work.buckets)
        before = NO_TOKEN
        if at >= 0:
            _set_row(texts, at, top_ids[i], work.buckets, rest)
            if positions[i] >= 2:
                before = int(texts.records[at - 2, TEXT_TOKEN])
        learn_row(
            successors,
            token_ids[i],
            previous_ids[i],
            before,
            scope,
            top_ids[i],
            top_probs[i],
            work.buckets,
            rest,
            at >= 0,
            work.old_ids,
            work.old_means,
        )


@inlined
def _set_row(texts: Texts, position: int, ids: NDArray[np.int64], buckets: NDArray[np.uint8], rest: int) -> None:
    for rank in range(NUM_SUCCESSORS):
        bucket = int(buckets[rank])
        texts.rows[position, rank] = packed(ids[rank], bucket, 0) if bucket > 0 else 0
    texts.records[position, ROW_MARKS] = rest
    set_followed(texts, position)
