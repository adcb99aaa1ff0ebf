"""The tokens that may follow a node, from all sources, one candidate a token however many sources name it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.recent import ask_last_place
from goose.anisotropic.successors import FIRST_ENTRY, NUM_ENTRIES, is_at
from goose.anisotropic.texts import NUM_SUCCESSORS, followed_at, row_rest_at
from goose.anisotropic.usual import NUM_USUAL
from goose.anisotropic.workspace import (
    AT,
    ID,
    IN_PAIR,
    IN_PAIR_MEAN,
    IN_PLACE,
    IN_TOKEN,
    IN_TOKEN_MEAN,
    IN_TRIPLE,
    IN_USUAL,
    LENGTH,
    MAX_CANDIDATES,
    NEXT,
    NUM_STAMPS,
    OWN_FOLLOWED,
    OWN_LENGTH,
    OWN_VOTES,
    PAIR_KEY,
    PAIR_PLACE,
    POOL_FOLLOWED,
    POOL_LENGTH,
    POOL_VOTES,
    SOURCE,
    TOKEN_KEY,
    TOKEN_PLACE,
    TRIPLE_KEY,
    TRIPLE_PLACE,
)
from goose.jit import inlined, jit

__all__ = ["CONTEXT", "POOL", "TRANSITIONS", "Evidence", "gather_candidates"]

# Bits of the column `SOURCE`.
CONTEXT, TRANSITIONS, POOL = 1, 2, 4

# A match this long says more than the tables: they are not asked.
_HELD_MATCH = 10
# The row at a matched place counts from this length on.
_PLACE_MATCH = 3
# Row entries below this bucket are no candidates (bucket 4 starts at 0.01).
_MIN_BUCKET = 4
# Behind the stamps: serial number of the expansion, number of candidates.
_SERIAL, _COUNT = NUM_STAMPS, NUM_STAMPS + 1


class Evidence(NamedTuple):
    """What was found for a node, beside its candidates. Rows are row numbers or positions, -1: none."""

    num_candidates: int
    longest_own: int
    longest_pool: int
    num_own: int
    # matches at least half as long as the longest
    own_votes: int
    pool_votes: int
    # the candidate that the latest occurrence names, -1: none
    latest: int
    # position whose row was read
    place: int
    token_row: int
    pair_row: int
    triple_row: int
    # list of usual tokens
    usual: int


@inlined
def gather_candidates(
    records: NDArray[np.int32],
    rows: NDArray[np.int32],
    tokens: NDArray[np.int32],
    pairs: NDArray[np.int32],
    triples: NDArray[np.int32],
    usual_tokens: NDArray[np.int32],
    usual: int,
    nodes: NDArray[np.int32],
    own: NDArray[np.int32],
    pool: NDArray[np.int32],
    num_occurrences: NDArray[np.int32],
    candidates: NDArray[np.int32],
    stamps: NDArray[np.int64],
    recent: NDArray[np.int32],
    slot: int,
    end: int,
    node: int,
    expansion: int,
) -> Evidence:
    """Fills the candidates of one node: which sources name them, by what matches, and how likely rows find them.

    `usual`: row of `usual_tokens` to ask where the token has no row, -1: none.
    """
    stamps[_SERIAL] += 1
    stamps[_COUNT] = 0
    num_own, num_pool = int(num_occurrences[expansion, 0]), int(num_occurrences[expansion, 1])
    longest_own = longest_pool = 0
    place = pool_place = -1
    for i in range(num_own):
        if own[expansion, i, LENGTH] > longest_own:
            longest_own, place = int(own[expansion, i, LENGTH]), int(own[expansion, i, AT])
    for i in range(num_pool):
        if pool[expansion, i, LENGTH] > longest_pool:
            longest_pool, pool_place = int(pool[expansion, i, LENGTH]), int(pool[expansion, i, AT])

    own_votes = pool_votes = 0
    latest = -1
    for i in range(num_own):
        position, length = int(own[expansion, i, AT]), int(own[expansion, i, LENGTH])
        candidate = _candidate(candidates, stamps, recent, slot, int(own[expansion, i, NEXT]), CONTEXT)
        if candidate < 0:
            continue
        if 2 * length >= longest_own:
            own_votes += 1
            candidates[candidate, OWN_VOTES] += 1
        if latest < 0:
            latest = candidate
        if length > candidates[candidate, OWN_LENGTH]:
            candidates[candidate, OWN_LENGTH] = length
            if position < end:
                candidates[candidate, OWN_FOLLOWED] = followed_at(records, position)
    for i in range(num_pool):
        position, length = int(pool[expansion, i, AT]), int(pool[expansion, i, LENGTH])
        candidate = _candidate(candidates, stamps, recent, slot, int(pool[expansion, i, NEXT]), POOL)
        if candidate < 0:
            continue
        if 2 * length >= longest_pool:
            pool_votes += 1
            candidates[candidate, POOL_VOTES] += 1
        if length > candidates[candidate, POOL_LENGTH]:
            candidates[candidate, POOL_LENGTH] = length
            candidates[candidate, POOL_FOLLOWED] = followed_at(records, position)

    if longest_own < _PLACE_MATCH or place > end or row_rest_at(records, place) == 0:
        place = -1
    token_row = pair_row = triple_row = -1
    if place < 0 or longest_own < _HELD_MATCH:
        if is_at(tokens, int(nodes[node, TOKEN_PLACE]), int(nodes[node, TOKEN_KEY])):
            token_row = int(nodes[node, TOKEN_PLACE])
        if is_at(pairs, int(nodes[node, PAIR_PLACE]), int(nodes[node, PAIR_KEY])):
            pair_row = int(nodes[node, PAIR_PLACE])
        if is_at(triples, int(nodes[node, TRIPLE_PLACE]), int(nodes[node, TRIPLE_KEY])):
            triple_row = int(nodes[node, TRIPLE_PLACE])
    if place < 0 and longest_pool >= _PLACE_MATCH and row_rest_at(records, pool_place) > 0:
        place = pool_place

    # The most specific rows first: places are limited.
    if triple_row >= 0:
        for entry in range(FIRST_ENTRY, FIRST_ENTRY + NUM_SUCCESSORS):
            successor = int(triples[triple_row, entry])
            if successor == 0:
                break
            candidate = _candidate(candidates, stamps, recent, slot, successor >> 10, TRANSITIONS)
            if candidate >= 0:
                candidates[candidate, IN_TRIPLE] = successor >> 5 & 31
    if place >= 0:
        for rank in range(NUM_SUCCESSORS):
            successor = int(rows[place, rank])
            if successor >> 5 & 31 < _MIN_BUCKET:
                break
            candidate = _candidate(candidates, stamps, recent, slot, successor >> 10, TRANSITIONS)
            if candidate >= 0:
                candidates[candidate, IN_PLACE] = successor >> 5 & 31
    if pair_row >= 0:
        _read_record(pairs, pair_row, candidates, stamps, recent, slot, IN_PAIR, IN_PAIR_MEAN)
    if token_row >= 0:
        _read_record(tokens, token_row, candidates, stamps, recent, slot, IN_TOKEN, IN_TOKEN_MEAN)
    if token_row >= 0 or (place >= 0 and longest_own >= _HELD_MATCH):
        usual = -1
    if usual >= 0:
        for entry in range(NUM_USUAL):
            successor = int(usual_tokens[usual, entry])
            if successor == 0:
                break
            candidate = _candidate(candidates, stamps, recent, slot, successor >> 10, TRANSITIONS)
            if candidate >= 0:
                candidates[candidate, IN_USUAL] = successor >> 5 & 31
    return Evidence(
        int(stamps[_COUNT]),
        longest_own,
        longest_pool,
        num_own,
        own_votes,
        pool_votes,
        latest,
        place,
        token_row,
        pair_row,
        triple_row,
        usual,
    )


@jit
def _candidate(
    candidates: NDArray[np.int32],
    stamps: NDArray[np.int64],
    recent: NDArray[np.int32],
    slot: int,
    token: int,
    source: int,
) -> int:
    """The candidate of that token, a new one if need be, credited to a source; -1 without a token or a place."""
    if token < 0:
        return -1
    count = int(stamps[_COUNT])
    stamp = int(stamps[token & (NUM_STAMPS - 1)])
    if stamp // MAX_CANDIDATES == stamps[_SERIAL]:
        # Most often the token itself; else two tokens share the place, and all are looked through.
        candidate = stamp % MAX_CANDIDATES
        if candidates[candidate, ID] != token:
            candidate = 0
            while candidate < count and candidates[candidate, ID] != token:
                candidate += 1
        if candidate < count:
            candidates[candidate, SOURCE] |= source
            return candidate
    if count == MAX_CANDIDATES:
        return -1
    stamps[token & (NUM_STAMPS - 1)] = stamps[_SERIAL] * MAX_CANDIDATES + count
    stamps[_COUNT] = count + 1
    for column in range(SOURCE, IN_USUAL + 1):
        candidates[count, column] = 0
    candidates[count, ID] = token
    candidates[count, SOURCE] = source
    ask_last_place(recent, slot, token)
    return count


@jit
def _read_record(
    table: NDArray[np.int32],
    row: int,
    candidates: NDArray[np.int32],
    stamps: NDArray[np.int64],
    recent: NDArray[np.int32],
    slot: int,
    in_row: int,
    in_mean: int,
) -> None:
    for entry in range(FIRST_ENTRY, FIRST_ENTRY + NUM_ENTRIES):
        successor = int(table[row, entry])
        if successor & 1023 == 0:
            continue
        candidate = _candidate(candidates, stamps, recent, slot, successor >> 10, TRANSITIONS)
        if candidate >= 0:
            candidates[candidate, in_row] = successor >> 5 & 31
            candidates[candidate, in_mean] = successor & 31
