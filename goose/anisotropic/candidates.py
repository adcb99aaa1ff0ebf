"""The tokens that may follow a node, from all sources, one candidate a token however many sources name it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import (
    MERGED_PAIR,
    MERGED_TOKEN,
    PAIR,
    PLACE,
    TOKEN,
    TRIPLE,
    probability_bucket,
)
from goose.anisotropic.occurrences import following, token_before
from goose.anisotropic.successors import NUM_MERGED, find_row
from goose.anisotropic.texts import NO_TOKEN, NUM_SUCCESSORS
from goose.anisotropic.workspace import MAX_CANDIDATES, Candidates, Memory, Requests, Workspace
from goose.jit import jit

__all__ = ["CONTEXT", "POOL", "TRANSITIONS", "Evidence", "gather_candidates"]

# Bits of `Workspace.candidate_sources`.
CONTEXT, TRANSITIONS, POOL = 1, 2, 4

# Columns of `Workspace.votes`: longest match that continues with the candidate, long matches that do, and how likely
# the target found that continuation at the longest.
OWN_LENGTH, OWN_VOTES, OWN_FOLLOWED, POOL_LENGTH, POOL_VOTES, POOL_FOLLOWED = range(6)

# A match this long says more than the tables: they are not asked.
_HELD_MATCH = 10
# The row at a matched place counts from this length on.
_PLACE_MATCH = 3
# Row entries below these are no candidates (bucket 4 starts at 0.01).
_MIN_BUCKET, _MIN_MERGED = 4, 0.02


class Evidence(NamedTuple):
    """What was found for a node, beside its candidates. Rows are row numbers or positions, -1: none."""

    longest_own: int
    longest_pool: int
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


@jit
def gather_candidates(
    memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int
) -> Evidence:
    """Fills the expansion's candidates, their votes, and the features that come from rows, as bucket numbers."""
    texts, successors, lists = memory.texts, memory.successors, work.candidates
    start, end, scope = requests.starts[slot], requests.ends[slot], requests.scopes[slot]
    lists.counts[expansion] = 0

    longest_own = longest_pool = 0
    place = pool_place = -1
    for i in range(work.num_own[expansion]):
        if work.own_lengths[expansion, i] > longest_own:
            longest_own, place = int(work.own_lengths[expansion, i]), int(work.own_at[expansion, i])
    for i in range(work.num_pool[expansion]):
        if work.pool_lengths[expansion, i] > longest_pool:
            longest_pool, pool_place = int(work.pool_lengths[expansion, i]), int(work.pool_at[expansion, i])

    own_votes = pool_votes = 0
    latest = -1
    for i in range(work.num_own[expansion]):
        position, length = int(work.own_at[expansion, i]), int(work.own_lengths[expansion, i])
        candidate = _candidate(lists, expansion, following(texts.token_ids, work.paths, node, position, end), CONTEXT)
        if candidate < 0:
            continue
        if 2 * length >= longest_own:
            own_votes += 1
            lists.votes[candidate, OWN_VOTES] += 1
        if latest < 0:
            latest = candidate
        if length > lists.votes[candidate, OWN_LENGTH]:
            lists.votes[candidate, OWN_LENGTH] = length
            if position < end:
                lists.votes[candidate, OWN_FOLLOWED] = texts.followed[position]
    for i in range(work.num_pool[expansion]):
        position, length = int(work.pool_at[expansion, i]), int(work.pool_lengths[expansion, i])
        candidate = _candidate(lists, expansion, int(texts.token_ids[position + 1]), POOL)
        if candidate < 0:
            continue
        if 2 * length >= longest_pool:
            pool_votes += 1
            lists.votes[candidate, POOL_VOTES] += 1
        if length > lists.votes[candidate, POOL_LENGTH]:
            lists.votes[candidate, POOL_LENGTH] = length
            lists.votes[candidate, POOL_FOLLOWED] = texts.followed[position]

    if longest_own < _PLACE_MATCH or place > end or texts.row_rests[place] == 0:
        place = -1
    token_row = pair_row = triple_row = -1
    if place < 0 or longest_own < _HELD_MATCH:
        a = int(work.paths.token_ids[node])
        b = token_before(texts.token_ids, work.paths, node, end, start, 1)
        token_row = find_row(successors.tokens.keys, a, -1, -1, scope)
        if b != NO_TOKEN:
            pair_row = find_row(successors.pairs.keys, a, b, -1, scope)
            c = token_before(texts.token_ids, work.paths, node, end, start, 2)
            if c != NO_TOKEN:
                triple_row = find_row(successors.triples.keys, a, b, c, scope)
    if place < 0 and longest_pool >= _PLACE_MATCH and texts.row_rests[pool_place] > 0:
        place = pool_place

    # The most specific rows first: places are limited.
    if triple_row >= 0:
        _read_row(lists, expansion, successors.triples.ids, successors.triples.buckets, triple_row, TRIPLE)
    if place >= 0:
        _read_row(lists, expansion, texts.row_ids, texts.row_buckets, place, PLACE)
    if pair_row >= 0:
        _read_row(lists, expansion, successors.pairs.ids, successors.pairs.buckets, pair_row, PAIR)
        _read_mean(lists, expansion, successors.pairs.merged_ids, successors.pairs.merged_probs, pair_row, MERGED_PAIR)
    if token_row >= 0:
        _read_row(lists, expansion, successors.tokens.ids, successors.tokens.buckets, token_row, TOKEN)
        _read_mean(
            lists, expansion, successors.tokens.merged_ids, successors.tokens.merged_probs, token_row, MERGED_TOKEN
        )
    return Evidence(longest_own, longest_pool, own_votes, pool_votes, latest, place, token_row, pair_row, triple_row)


@jit
def _candidate(lists: Candidates, expansion: int, token: int, source: int) -> int:
    """The candidate of that token, a new one if need be, credited to a source; -1 without a token or a place."""
    if token < 0:
        return -1
    count = int(lists.counts[expansion])
    for candidate in range(count):
        if lists.ids[expansion, candidate] == token:
            lists.sources[expansion, candidate] |= source
            return candidate
    if count == MAX_CANDIDATES:
        return -1
    lists.counts[expansion] = count + 1
    lists.ids[expansion, count] = token
    lists.sources[expansion, count] = source
    lists.votes[count] = 0
    lists.features[expansion, count] = 0
    return count


@jit
def _read_row(
    lists: Candidates, expansion: int, ids: NDArray[np.int32], buckets: NDArray[np.uint8], row: int, group: int
) -> None:
    for rank in range(NUM_SUCCESSORS):
        if buckets[row, rank] < _MIN_BUCKET:
            return
        candidate = _candidate(lists, expansion, int(ids[row, rank]), TRANSITIONS)
        if candidate >= 0:
            lists.features[expansion, candidate, group] = buckets[row, rank]


@jit
def _read_mean(
    lists: Candidates, expansion: int, ids: NDArray[np.int32], probs: NDArray[np.float32], row: int, group: int
) -> None:
    for entry in range(NUM_MERGED):
        probability = float(probs[row, entry])
        if probability >= _MIN_MERGED:
            candidate = _candidate(lists, expansion, int(ids[row, entry]), TRANSITIONS)
            if candidate >= 0:
                lists.features[expansion, candidate, group] = probability_bucket(probability)
