"""Where the text at a node of a tree stood before: occurrences in the request's own text and in pooled outputs.

At the anchor they are looked up in the index, longest n-grams first. At a child they are those of its parent that
continue with the child's token; where none of three tokens is left, the two last tokens are looked up anew (a longer
one would have come down from the parent). An own occurrence that reaches the end of the text goes on in the drafted
path itself (position `end + d` is the path's node at depth d), so that a loop drafts itself on. The match length is
the true one, compared backwards over path and text, up to `MAX_MATCH`.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.hashing import ngram_hash
from goose.anisotropic.texts import NO_TOKEN, OWN_LINKS, POOL_LINKS, TEXT_SCOPE, TEXT_TOKEN, Texts, prefetch_around
from goose.anisotropic.workspace import (
    AT,
    BEFORE,
    DEPTH,
    LENGTH,
    MAX_OWN,
    MAX_POOL,
    NEXT,
    OWN_CODE,
    PARENT,
    POOL_CODE,
    TOKEN,
    TWICE_BEFORE,
    Memory,
    Requests,
    Workspace,
)
from goose.jit import inlined, jit, prefetch

__all__ = ["ask_at_anchor", "begin_asking", "find_at_anchor", "find_below", "go_on_asking"]

# Longer matches are all the same.
MAX_MATCH = 96
# At nodes below the anchor a new search compares less and follows fewer links: it is there for fresh short matches.
_MAX_MATCH_BELOW, _MAX_STEPS, _MAX_STEPS_BELOW, _MAX_POOL_STEPS, _MAX_POOL_STEPS_BELOW = 12, 16, 2, 12, 1
# A shorter index is asked only if the longer ones gave fewer occurrences than this.
_ENOUGH_LONG, _ENOUGH, _ENOUGH_POOLED = 6, 8, 4
# Inherited occurrences that agree at least this far are good enough.
_GOOD_MATCH = 3
_OWN, _POOL = 0, 1


@jit
def _following(records: NDArray[np.int32], nodes: NDArray[np.int32], node: int, position: int, end: int) -> int:
    """The token behind an own occurrence of a node, NO_TOKEN if there is none yet."""
    if position < end:
        return int(records[position + 1, TEXT_TOKEN])
    depth = position + 1 - end
    if depth > nodes[node, DEPTH]:
        return NO_TOKEN
    while nodes[node, DEPTH] > depth:
        node = int(nodes[node, PARENT])
    return int(nodes[node, TOKEN])


@jit
def _match_length(
    records: NDArray[np.int32], nodes: NDArray[np.int32], node: int, end: int, position: int, longest: int
) -> int:
    """How many tokens before and at `position` equal those before and at the node. NO_TOKEN ends both texts."""
    length = 0
    while length < longest and nodes[node, DEPTH] > 0:
        if position - length < 0 or records[position - length, TEXT_TOKEN] != nodes[node, TOKEN]:
            return length
        node = int(nodes[node, PARENT])
        length += 1
    back = 0
    while length < longest and position - length >= 0 and end - back >= 0:
        token = records[position - length, TEXT_TOKEN]
        if token == NO_TOKEN or token != records[end - back, TEXT_TOKEN]:
            break
        length += 1
        back += 1
    return length


@jit
def ask_at_anchor(memory: Memory, requests: Requests, work: Workspace, lane: int, slot: int, anchor: int) -> None:
    """Notes where the index is to be asked for the anchor of a lane, and asks for it to be at hand."""
    texts, nodes, cursors = memory.texts, work.nodes, work.cursors[lane]
    owner, scope = requests.owners[slot], requests.scopes[slot]
    a, b, c = int(nodes[anchor, TOKEN]), int(nodes[anchor, BEFORE]), int(nodes[anchor, TWICE_BEFORE])
    end = requests.ends[slot]
    d = int(texts.records[end - 3, TEXT_TOKEN]) if c != NO_TOKEN and end - 3 >= requests.starts[slot] else NO_TOKEN
    own_mask, pool_mask = texts.own_heads.shape[1] - 1, texts.pool_heads.shape[1] - 1
    cursors[0] = ngram_hash(a, NO_TOKEN, NO_TOKEN, NO_TOKEN, owner) & own_mask
    cursors[1] = ngram_hash(a, b, NO_TOKEN, NO_TOKEN, owner) & own_mask
    cursors[2] = ngram_hash(a, b, c, d, owner) & own_mask
    cursors[3] = ngram_hash(a, b, NO_TOKEN, NO_TOKEN, scope) & pool_mask
    cursors[4] = ngram_hash(a, b, c, d, scope) & pool_mask
    for tier in range(3):
        prefetch(texts.own_heads, tier, cursors[tier])
    for tier in range(2):
        prefetch(texts.pool_heads, tier, cursors[3 + tier])


@jit
def begin_asking(texts: Texts, cursors: NDArray[np.int64]) -> None:
    """From places in the index to the latest positions."""
    for tier in range(3):
        cursors[tier] = int(texts.own_heads[tier, cursors[tier]]) - 1
    for tier in range(2):
        cursors[3 + tier] = int(texts.pool_heads[tier, cursors[3 + tier]]) - 1
    for chain in range(5):
        prefetch_around(texts.records, cursors[chain])


@jit
def go_on_asking(texts: Texts, cursors: NDArray[np.int64]) -> None:
    """From positions to earlier ones. What `find_at_anchor` reads is at hand afterwards, if others are asked meanwhile:
    each step of a search waits for the one before it, but not for those of other searches."""
    for chain in range(5):
        if cursors[chain] >= 0:
            # Links of own and of pooled occurrences follow each other in a record.
            cursors[chain] = int(texts.records[cursors[chain], OWN_LINKS + chain]) - 1
            prefetch_around(texts.records, cursors[chain])


@jit
def find_at_anchor(memory: Memory, requests: Requests, work: Workspace, slot: int, anchor: int, expansion: int) -> None:
    """Fills the expansion of an anchor from the whole index: own text by 4, 2 and 1 tokens, pooled outputs by 4 and 2.

    What was found for this anchor before is taken as it is.
    """
    found = requests.found[slot]
    if found[0] > 0:
        num_own, num_pool = (found[0] - 1) % 32, (found[0] - 1) // 32
        for i in range(num_own):
            for column in range(3):
                work.own[expansion, i, column] = found[1 + 3 * i + column]
        for i in range(num_pool):
            for column in range(3):
                work.pool[expansion, i, column] = found[1 + 3 * (MAX_OWN + i) + column]
        work.num_occurrences[expansion, _OWN], work.num_occurrences[expansion, _POOL] = num_own, num_pool
        return
    texts, records, nodes = memory.texts, memory.texts.records, work.nodes
    start, end = requests.starts[slot], requests.ends[slot]
    a, b, c = int(nodes[anchor, TOKEN]), int(nodes[anchor, BEFORE]), int(nodes[anchor, TWICE_BEFORE])
    d = int(records[end - 3, TEXT_TOKEN]) if c != NO_TOKEN and end - 3 >= start else NO_TOKEN
    owner, mask, count = requests.owners[slot], texts.own_heads.shape[1] - 1, 0
    for tier in range(2, -1, -1):
        if (d if tier == 2 else (b if tier == 1 else a)) == NO_TOKEN:
            continue
        if (tier == 1 and count >= _ENOUGH_LONG) or (tier == 0 and count >= _ENOUGH):
            continue
        # Of a shorter index, what the longer one has found already is compared up to there and left out.
        least, most = (4, MAX_MATCH) if tier == 2 else ((2, 3) if tier == 1 else (1, 1))
        if tier == 2:
            code = ngram_hash(a, b, c, d, owner)
        else:
            code = ngram_hash(a, b if tier == 1 else NO_TOKEN, NO_TOKEN, NO_TOKEN, owner)
        position = int(texts.own_heads[tier, code & mask]) - 1
        for _ in range(_MAX_STEPS):
            if position < 0 or count == MAX_OWN:
                break
            if start <= position < end:
                length = _match_length(records, nodes, anchor, end, position, min(most + 1, MAX_MATCH))
                if least <= length <= most:
                    work.own[expansion, count, AT], work.own[expansion, count, LENGTH] = position, length
                    work.own[expansion, count, NEXT] = records[position + 1, TEXT_TOKEN]
                    count += 1
            position = int(records[position, OWN_LINKS + tier]) - 1
    work.num_occurrences[expansion, _OWN] = count

    scope, mask, count = requests.scopes[slot], texts.pool_heads.shape[1] - 1, 0
    for tier in range(1, -1, -1):
        if (d if tier == 1 else b) == NO_TOKEN or (tier == 0 and count >= _ENOUGH_POOLED):
            continue
        least, most = (4, MAX_MATCH) if tier == 1 else (2, 3)
        code = ngram_hash(a, b, c, d, scope) if tier == 1 else ngram_hash(a, b, NO_TOKEN, NO_TOKEN, scope)
        position = int(texts.pool_heads[tier, code & mask]) - 1
        for _ in range(_MAX_POOL_STEPS):
            if position < 0 or count == MAX_POOL:
                break
            if records[position, TEXT_SCOPE] == scope and not start <= position <= end:
                length = _match_length(records, nodes, anchor, end, position, min(most + 1, MAX_MATCH))
                if least <= length <= most:
                    work.pool[expansion, count, AT], work.pool[expansion, count, LENGTH] = position, length
                    work.pool[expansion, count, NEXT] = records[position + 1, TEXT_TOKEN]
                    count += 1
            position = int(records[position, POOL_LINKS + tier]) - 1
    work.num_occurrences[expansion, _POOL] = count

    num_own = int(work.num_occurrences[expansion, _OWN])
    for i in range(num_own):
        for column in range(3):
            found[1 + 3 * i + column] = work.own[expansion, i, column]
    for i in range(count):
        for column in range(3):
            found[1 + 3 * (MAX_OWN + i) + column] = work.pool[expansion, i, column]
    found[0] = 1 + num_own + 32 * count


@inlined
def find_below(
    records: NDArray[np.int32],
    own_heads: NDArray[np.int32],
    pool_heads: NDArray[np.int32],
    nodes: NDArray[np.int32],
    own: NDArray[np.int32],
    pool: NDArray[np.int32],
    num_occurrences: NDArray[np.int32],
    start: int,
    end: int,
    scope: int,
    node: int,
    above: int,
    expansion: int,
) -> None:
    """Fills the expansion of a draft node from `above`, that of its parent, and from the index of pairs."""
    token = nodes[node, TOKEN]
    count = longest = 0
    for i in range(num_occurrences[above, _OWN]):
        if own[above, i, NEXT] == token:
            position, length = int(own[above, i, AT]) + 1, min(MAX_MATCH, int(own[above, i, LENGTH]) + 1)
            own[expansion, count, AT], own[expansion, count, LENGTH] = position, length
            own[expansion, count, NEXT] = _following(records, nodes, node, position, end)
            longest = max(longest, length)
            count += 1
    if longest < _GOOD_MATCH:
        count = 0
        position = int(own_heads[1, int(nodes[node, OWN_CODE])]) - 1
        for _ in range(_MAX_STEPS_BELOW):
            if position < 0:
                break
            if start <= position < end:
                length = _match_length(records, nodes, node, end, position, _MAX_MATCH_BELOW)
                if length >= 2:
                    own[expansion, count, AT], own[expansion, count, LENGTH] = position, length
                    own[expansion, count, NEXT] = records[position + 1, TEXT_TOKEN]
                    count += 1
            position = int(records[position, OWN_LINKS + 1]) - 1
    num_occurrences[expansion, _OWN] = count

    count = 0
    for i in range(num_occurrences[above, _POOL]):
        if pool[above, i, NEXT] == token:
            position = int(pool[above, i, AT]) + 1
            pool[expansion, count, AT] = position
            pool[expansion, count, LENGTH] = min(MAX_MATCH, int(pool[above, i, LENGTH]) + 1)
            pool[expansion, count, NEXT] = records[position + 1, TEXT_TOKEN]
            count += 1
    if count == 0:
        position = int(pool_heads[0, int(nodes[node, POOL_CODE])]) - 1
        for _ in range(_MAX_POOL_STEPS_BELOW):
            if position < 0:
                break
            if records[position, TEXT_SCOPE] == scope and not start <= position <= end:
                length = _match_length(records, nodes, node, end, position, _MAX_MATCH_BELOW)
                if length >= 2:
                    pool[expansion, count, AT], pool[expansion, count, LENGTH] = position, length
                    pool[expansion, count, NEXT] = records[position + 1, TEXT_TOKEN]
                    count += 1
            position = int(records[position, POOL_LINKS]) - 1
    num_occurrences[expansion, _POOL] = count
