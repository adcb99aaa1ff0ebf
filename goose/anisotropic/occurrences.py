"""Where the text at a node of a tree stood before: occurrences in the request's own text and in pooled outputs.

At the anchor they are looked up in the index; at a child, those of its parent that continue with the child's token,
looked up anew only when no good one is left. An own occurrence that reaches the end of the text goes on in the drafted
path itself (position `end + d` is the path's node at depth d), so that a loop drafts itself on. The match length is
the true one, compared backwards over path and text, up to `MAX_MATCH`.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.hashing import ngram_hash
from goose.anisotropic.texts import NO_TOKEN
from goose.anisotropic.workspace import MAX_OWN, MAX_POOL, Memory, Paths, Requests, Workspace
from goose.jit import jit

__all__ = ["find_occurrences", "following"]

# Longer matches are all the same.
MAX_MATCH = 96
# At nodes below the anchor a new search compares less and follows fewer links: it is there for fresh short matches.
_MAX_MATCH_BELOW, _MAX_STEPS, _MAX_STEPS_BELOW, _MAX_POOL_STEPS, _MAX_POOL_STEPS_BELOW = 12, 16, 4, 12, 3
# A shorter index is asked only if the longer ones gave fewer occurrences than this.
_ENOUGH_LONG, _ENOUGH, _ENOUGH_POOLED = 6, 8, 4
# Inherited occurrences that agree at least this far are good enough.
_GOOD_MATCH = 3


@jit
def following(text_ids: NDArray[np.int32], paths: Paths, node: int, position: int, end: int) -> int:
    """The token behind an own occurrence of a node, NO_TOKEN if there is none yet."""
    if position < end:
        return int(text_ids[position + 1])
    depth = position + 1 - end
    if depth > paths.depths[node]:
        return NO_TOKEN
    while paths.depths[node] > depth:
        node = paths.parents[node]
    return int(paths.token_ids[node])


@jit
def token_before(text_ids: NDArray[np.int32], paths: Paths, node: int, end: int, start: int, back: int) -> int:
    """The token `back` places before a node's own, along path and text; NO_TOKEN before the text's start."""
    while back > 0 and paths.depths[node] > 0:
        node = paths.parents[node]
        back -= 1
    if paths.depths[node] > 0 or back == 0:
        return int(paths.token_ids[node])
    return int(text_ids[end - back]) if end - back >= start else NO_TOKEN


@jit
def _match_length(text_ids: NDArray[np.int32], paths: Paths, node: int, end: int, position: int, longest: int) -> int:
    """How many tokens before and at `position` equal those before and at the node. NO_TOKEN ends both texts."""
    length = 0
    while length < longest and paths.depths[node] > 0:
        if position - length < 0 or text_ids[position - length] != paths.token_ids[node]:
            return length
        node = paths.parents[node]
        length += 1
    back = 0
    while length < longest and position - length >= 0 and end - back >= 0:
        token = text_ids[position - length]
        if token == NO_TOKEN or token != text_ids[end - back]:
            break
        length += 1
        back += 1
    return length


@jit
def find_occurrences(memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int) -> None:
    """Fills the expansion's occurrences, own and pooled."""
    texts, end = memory.texts, requests.ends[slot]
    at_anchor = work.paths.depths[node] == 0
    token = work.paths.token_ids[node]
    num_own = num_pool = longest = 0
    if not at_anchor:
        parent = work.paths.parents[node]
        above = work.expansions[parent]
        for i in range(work.num_own[above]):
            position = int(work.own_at[above, i])
            if following(texts.token_ids, work.paths, parent, position, end) == token:
                length = min(MAX_MATCH, int(work.own_lengths[above, i]) + 1)
                work.own_at[expansion, num_own] = position + 1
                work.own_lengths[expansion, num_own] = length
                longest = max(longest, length)
                num_own += 1
        for i in range(work.num_pool[above]):
            position = int(work.pool_at[above, i])
            if texts.token_ids[position + 1] == token:
                work.pool_at[expansion, num_pool] = position + 1
                work.pool_lengths[expansion, num_pool] = min(MAX_MATCH, int(work.pool_lengths[above, i]) + 1)
                num_pool += 1
    work.num_own[expansion] = num_own
    work.num_pool[expansion] = num_pool
    if longest < _GOOD_MATCH or num_pool == 0:
        start = requests.starts[slot]
        b = token_before(texts.token_ids, work.paths, node, end, start, 1)
        c = token_before(texts.token_ids, work.paths, node, end, start, 2)
        d = token_before(texts.token_ids, work.paths, node, end, start, 3)
        if longest < _GOOD_MATCH:
            _search_own(memory, requests, work, slot, node, expansion, b, c, d)
        if num_pool == 0:
            _search_pool(memory, requests, work, slot, node, expansion, b, c, d)


@jit
def _search_own(
    memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int, b: int, c: int, d: int
) -> None:
    """Occurrences of the last 4 tokens, then of 2, then of 1; each index gives what the longer ones cannot."""
    texts = memory.texts
    start, end, owner = requests.starts[slot], requests.ends[slot], requests.owners[slot]
    at_anchor = work.paths.depths[node] == 0
    max_steps = _MAX_STEPS if at_anchor else _MAX_STEPS_BELOW
    mask = texts.own_heads.shape[1] - 1
    a = int(work.paths.token_ids[node])
    count = 0
    for tier in range(2, -1, -1):
        if (d if tier == 2 else (b if tier == 1 else a)) == NO_TOKEN:
            continue
        if (tier == 1 and count >= _ENOUGH_LONG) or (tier == 0 and count >= _ENOUGH):
            continue
        least, longest = (
            (4, MAX_MATCH if at_anchor else _MAX_MATCH_BELOW) if tier == 2 else ((2, 4) if tier == 1 else (1, 2))
        )
        if tier == 2:
            code = ngram_hash(a, b, c, d, owner)
        elif tier == 1:
            code = ngram_hash(a, b, -1, -1, owner)
        else:
            code = ngram_hash(a, -1, -1, -1, owner)
        position = int(texts.own_heads[tier, code & mask]) - 1
        for _ in range(max_steps):
            if position < 0 or count == MAX_OWN:
                break
            if start <= position < end:
                length = _match_length(texts.token_ids, work.paths, node, end, position, longest)
                # The longest compared is one that the longer index has found already.
                if length >= least and (tier == 2 or length < longest):
                    work.own_at[expansion, count] = position
                    work.own_lengths[expansion, count] = length
                    count += 1
            position = int(texts.own_links[position, tier]) - 1
    work.num_own[expansion] = count


@jit
def _search_pool(
    memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int, b: int, c: int, d: int
) -> None:
    """The same in outputs of the scope, its own text left out; the last 4 tokens, then 2."""
    texts = memory.texts
    start, end, scope = requests.starts[slot], requests.ends[slot], requests.scopes[slot]
    at_anchor = work.paths.depths[node] == 0
    max_steps = _MAX_POOL_STEPS if at_anchor else _MAX_POOL_STEPS_BELOW
    mask = texts.pool_heads.shape[1] - 1
    a = int(work.paths.token_ids[node])
    count = 0
    for tier in range(1, -1, -1):
        if (d if tier == 1 else b) == NO_TOKEN or (tier == 0 and count >= _ENOUGH_POOLED):
            continue
        least, longest = (4, MAX_MATCH if at_anchor else _MAX_MATCH_BELOW) if tier == 1 else (2, 4)
        code = ngram_hash(a, b, c, d, scope) if tier == 1 else ngram_hash(a, b, -1, -1, scope)
        position = int(texts.pool_heads[tier, code & mask]) - 1
        for _ in range(max_steps):
            if position < 0 or count == MAX_POOL:
                break
            if texts.scopes[position] == scope and not start <= position <= end:
                length = _match_length(texts.token_ids, work.paths, node, end, position, longest)
                if length >= least and (tier == 1 or length < longest):
                    work.pool_at[expansion, count] = position
                    work.pool_lengths[expansion, count] = length
                    count += 1
            position = int(texts.pool_links[position, tier]) - 1
    work.num_pool[expansion] = count
