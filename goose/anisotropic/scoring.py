"""Which weights count for each candidate of a node, and for none of them: what was found, as bucket numbers.

The table of features stands in `goose.anisotropic.features`.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic import features as table
from goose.anisotropic import workspace
from goose.anisotropic.candidates import (
    OWN_FOLLOWED,
    OWN_LENGTH,
    OWN_VOTES,
    POOL_FOLLOWED,
    POOL_LENGTH,
    POOL_VOTES,
    Evidence,
)
from goose.anisotropic.hashing import ngram_hash
from goose.anisotropic.workspace import Memory, Requests, Workspace
from goose.jit import jit

__all__ = ["set_features", "set_none_features"]

# Links followed to the last time a token was seen: hashes of other tokens are skipped.
_SEEN_STEPS = 2


@jit
def set_none_features(
    memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int, found: Evidence
) -> None:
    if found.pair_row >= 0:
        rest = int(memory.successors.pairs.rests[found.pair_row])
        tier = 2
    elif found.token_row >= 0:
        rest = int(memory.successors.tokens.rests[found.token_row])
        tier = 1
    else:
        rest = tier = 0
    if found.triple_row >= 0:
        tier = 3
    trends = _trends(requests.adapted, slot)
    features = work.none_features[expansion]
    features[0] = (
        table.AT_NONE_OWN
        + table.length_bucket(found.longest_own) * table.NUM_SHARES
        + min(int(work.num_own[expansion]), table.NUM_SHARES - 1)
    )
    features[1] = table.AT_NONE_ROW + rest * 4 + tier
    features[2] = table.AT_NONE_DEPTH + min(int(work.paths.depths[node]), table.NUM_DEPTHS - 1)
    features[3] = table.AT_NONE_POOL + table.length_bucket(found.longest_pool)
    features[4] = table.AT_NONE_TREND + trends


@jit
def _trends(adapted: NDArray[np.float64], slot: int) -> int:
    own, top = adapted[slot, workspace.OWN_TREND], adapted[slot, workspace.TOP_TREND]
    return table.trend_bucket(own) * table.NUM_TRENDS + table.trend_bucket(top)


@jit
def set_features(
    memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int, found: Evidence
) -> None:
    """Turns votes and row buckets of all candidates into indices of weights."""
    pairs, tokens = memory.successors.pairs, memory.successors.tokens
    text_ids, heads, links = memory.texts.token_ids, memory.texts.own_heads, memory.texts.own_links
    start, end, owner = requests.starts[slot], requests.ends[slot], requests.owners[slot]
    span = max(table.span_bucket(found.longest_own), table.span_bucket(found.longest_pool))
    has_place, has_pair = found.place >= 0, found.pair_row >= 0
    has_token, has_triple = found.token_row >= 0, found.triple_row >= 0
    tier = 2 if has_triple else (1 if has_pair else 0)
    context = table.NUM_CONTEXTS - 1 if has_triple else min(span, table.NUM_CONTEXTS - 2)
    pair_count = _pair_count(int(pairs.counts[found.pair_row])) if has_pair else 0
    token_count = _token_count(int(tokens.counts[found.token_row])) if has_token else 0
    at_place = table.AT_PLACE + span * table.NUM_PROBABILITIES
    at_triple = table.AT_TRIPLE + span * table.NUM_PROBABILITIES
    at_pair = table.AT_PAIR + context * table.NUM_PROBABILITIES
    at_token = table.AT_TOKEN + tier * table.NUM_PROBABILITIES
    at_merged_pair = table.AT_MERGED_PAIR + (pair_count * table.NUM_CONTEXTS + context) * table.NUM_PROBABILITIES
    at_merged_token = table.AT_MERGED_TOKEN + (token_count * table.NUM_TIERS + tier) * table.NUM_PROBABILITIES
    streak = int(requests.adapted[slot, workspace.STREAK]) + int(work.paths.depths[node])
    at_streak = table.AT_STREAK + table.streak_bucket(streak) * table.NUM_STREAK_LENGTHS
    at_trend = table.AT_TREND + _trends(requests.adapted, slot) * table.NUM_TREND_LENGTHS
    votes, features = work.candidates.votes, work.candidates.features[expansion]
    for candidate in range(work.candidates.counts[expansion]):
        own, pooled = int(votes[candidate, OWN_LENGTH]), int(votes[candidate, POOL_LENGTH])
        own_votes = int(votes[candidate, OWN_VOTES])
        features[candidate, table.OWN] = (
            table.AT_OWN + table.length_bucket(own) * table.NUM_SHARES + table.share_bucket(own_votes, found.own_votes)
        )
        features[candidate, table.OWN_ROW] = (
            table.AT_OWN_ROW + table.span_bucket(own) * table.NUM_PROBABILITIES + int(votes[candidate, OWN_FOLLOWED])
        )
        features[candidate, table.POOL] = (
            table.AT_POOL
            + table.length_bucket(pooled) * table.NUM_SHARES
            + table.share_bucket(int(votes[candidate, POOL_VOTES]), found.pool_votes)
        )
        features[candidate, table.POOL_ROW] = (
            table.AT_POOL_ROW
            + table.span_bucket(pooled) * table.NUM_PROBABILITIES
            + int(votes[candidate, POOL_FOLLOWED])
        )
        features[candidate, table.PLACE] = at_place + _in_row(int(features[candidate, table.PLACE]), has_place)
        features[candidate, table.TRIPLE] = at_triple + _in_row(int(features[candidate, table.TRIPLE]), has_triple)
        features[candidate, table.PAIR] = at_pair + _in_row(int(features[candidate, table.PAIR]), has_pair)
        features[candidate, table.TOKEN] = at_token + _in_row(int(features[candidate, table.TOKEN]), has_token)
        features[candidate, table.MERGED_PAIR] = at_merged_pair + _in_row(
            int(features[candidate, table.MERGED_PAIR]), has_pair
        )
        features[candidate, table.MERGED_TOKEN] = at_merged_token + _in_row(
            int(features[candidate, table.MERGED_TOKEN]), has_token
        )
        features[candidate, table.RECENT] = (
            table.AT_RECENT + table.span_bucket(own) * 2 + (1 if candidate == found.latest else 0)
        )
        kind = 0 if own_votes > 0 else (1 if pooled > 0 else 2)
        seen = _distance(text_ids, heads, links, start, end, owner, int(work.candidates.ids[expansion, candidate]))
        features[candidate, table.SEEN] = table.AT_SEEN + seen * 3 + kind
        features[candidate, table.SUPPORT] = table.AT_SUPPORT + _support_class(own, pooled)
        features[candidate, table.STREAK] = at_streak + _streak_length(own, found.longest_own)
        features[candidate, table.TREND] = at_trend + _trend_length(own, found.longest_own)


@jit
def _in_row(bucket: int, has_row: bool) -> int:
    return max(bucket, table.NOT_IN_ROW) if has_row else 0


@jit
def _pair_count(count: int) -> int:
    return 0 if count < 2 else (1 if count < 4 else (2 if count < 10 else 3))


@jit
def _token_count(count: int) -> int:
    return 0 if count < 2 else (1 if count < 6 else (2 if count < 25 else 3))


@jit
def _support_class(own: int, pooled: int) -> int:
    if own >= 8:
        return 0
    return 1 if own >= 2 else (2 if own == 1 else (3 if pooled >= 3 else 4))


@jit
def _streak_length(own: int, longest: int) -> int:
    """0: not copied; 1: copied, but not by the longest match; else by the longest, in four lengths."""
    if own == 0 or own < longest:
        return min(own, 1)
    return 2 if own < 3 else (3 if own < 8 else (4 if own < 32 else 5))


@jit
def _trend_length(own: int, longest: int) -> int:
    if own < longest:
        return 6 if own > 0 else 0
    return 0 if own == 0 else (1 if own == 1 else (2 if own < 4 else (3 if own < 8 else (4 if own < 16 else 5))))


@jit
def _distance(
    text_ids: NDArray[np.int32],
    heads: NDArray[np.int32],
    links: NDArray[np.int32],
    start: int,
    end: int,
    owner: int,
    token: int,
) -> int:
    """1 if the request's text does not hold the token, else the bucket of how long ago it did."""
    if text_ids[end] == token:
        return table.distance_bucket(0)
    code = ngram_hash(token, -1, -1, -1, owner) & (heads.shape[1] - 1)
    position = int(heads[0, code]) - 1
    for _ in range(_SEEN_STEPS):
        if position < 0:
            break
        if start <= position < end and text_ids[position] == token:
            return table.distance_bucket(end - position)
        position = int(links[position, 0]) - 1
    return 1
