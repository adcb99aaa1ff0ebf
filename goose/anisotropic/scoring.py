"""The logit of each candidate of a node, and of none of them: a sum of weights, one a feature group.

The table of features stands in `goose.anisotropic.features`. Most candidates are neither copied nor pooled, and most
nodes lack some rows: what all those have in common is summed once a node. `feature_indices` names a candidate's
weights one by one, for learning; the sum of those is the logit (a test compares).
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic import features as table
from goose.anisotropic import workspace
from goose.anisotropic.candidates import Evidence
from goose.anisotropic.copied import copied_features, support_class
from goose.anisotropic.recent import last_place
from goose.anisotropic.successors import row_count, row_rest
from goose.anisotropic.workspace import (
    ID,
    IN_PAIR,
    IN_PAIR_MEAN,
    IN_PLACE,
    IN_TOKEN,
    IN_TOKEN_MEAN,
    IN_TRIPLE,
    IN_USUAL,
    MAX_CANDIDATES,
    OWN_FOLLOWED,
    OWN_LENGTH,
    OWN_VOTES,
    POOL_FOLLOWED,
    POOL_LENGTH,
    POOL_VOTES,
    SUPPORT_BIAS,
)
from goose.jit import inlined, jit

__all__ = ["candidate_features", "none_features", "score"]

# Places in a frame.
_AT_PLACE, _AT_TRIPLE, _AT_PAIR, _AT_PAIR_MEAN, _AT_TOKEN, _AT_TOKEN_MEAN, _AT_STREAK, _AT_TREND, _AT_USUAL = range(9)


@jit
def _trends(adapted: NDArray[np.float64], slot: int) -> int:
    own, top = adapted[slot, workspace.OWN_TREND], adapted[slot, workspace.TOP_TREND]
    return table.trend_bucket(own) * table.NUM_TRENDS + table.trend_bucket(top)


@jit
def none_features(
    tokens: NDArray[np.int32],
    pairs: NDArray[np.int32],
    adapted: NDArray[np.float64],
    slot: int,
    depth: int,
    found: Evidence,
) -> tuple[int, int, int, int, int]:
    """Weights of the outcome "none of the candidates"."""
    rest = tier = 0
    if found.pair_row >= 0:
        rest, tier = row_rest(pairs, found.pair_row), 2
    elif found.token_row >= 0:
        rest, tier = row_rest(tokens, found.token_row), 1
    if found.triple_row >= 0:
        tier = 3
    return (
        table.AT_NONE_OWN
        + table.length_bucket(found.longest_own) * table.NUM_SHARES
        + min(found.num_own, table.NUM_SHARES - 1),
        table.AT_NONE_ROW + rest * 4 + tier,
        table.AT_NONE_DEPTH + min(depth, table.NUM_DEPTHS - 1),
        table.AT_NONE_POOL + table.length_bucket(found.longest_pool),
        table.AT_NONE_TREND + _trends(adapted, slot),
    )


@jit
def _frame(
    tokens: NDArray[np.int32],
    pairs: NDArray[np.int32],
    adapted: NDArray[np.float64],
    slot: int,
    depth: int,
    found: Evidence,
) -> tuple[int, int, int, int, int, int, int, int, int]:
    """The first weight of each group whose place depends on the node alone."""
    span = max(table.span_bucket(found.longest_own), table.span_bucket(found.longest_pool))
    has_triple = found.triple_row >= 0
    tier = 2 if has_triple else (1 if found.pair_row >= 0 else 0)
    context = table.NUM_CONTEXTS - 1 if has_triple else min(span, table.NUM_CONTEXTS - 2)
    pair_count = _pair_count(row_count(pairs, found.pair_row)) if found.pair_row >= 0 else 0
    token_count = _token_count(row_count(tokens, found.token_row)) if found.token_row >= 0 else 0
    streak = int(adapted[slot, workspace.STREAK]) + depth
    return (
        table.AT_PLACE + span * table.NUM_PROBABILITIES,
        table.AT_TRIPLE + span * table.NUM_PROBABILITIES,
        table.AT_PAIR + context * table.NUM_PROBABILITIES,
        table.AT_MERGED_PAIR + (pair_count * table.NUM_CONTEXTS + context) * table.NUM_PROBABILITIES,
        table.AT_TOKEN + tier * table.NUM_PROBABILITIES,
        table.AT_MERGED_TOKEN + (token_count * table.NUM_TIERS + tier) * table.NUM_PROBABILITIES,
        table.AT_STREAK + table.streak_bucket(streak) * table.NUM_STREAK_LENGTHS,
        table.AT_TREND + _trends(adapted, slot) * table.NUM_TREND_LENGTHS,
        table.AT_USUAL + min(depth, table.NUM_SHALLOW - 1) * table.NUM_PROBABILITIES,
    )


@inlined
def score(
    weights: NDArray[np.float64],
    tokens: NDArray[np.int32],
    pairs: NDArray[np.int32],
    adapted: NDArray[np.float64],
    recent: NDArray[np.int32],
    candidates: NDArray[np.int32],
    logits: NDArray[np.float64],
    slot: int,
    num_tokens: int,
    depth: int,
    found: Evidence,
) -> None:
    """Fills the logits of all candidates and, in the last place, that of none. `num_tokens`: length of the text."""
    temperature = adapted[slot, workspace.TEMPERATURE]
    logit = 0.0
    for weight in none_features(tokens, pairs, adapted, slot, depth, found):
        logit += weights[weight]
    logits[MAX_CANDIDATES] = temperature * logit

    frame = _frame(tokens, pairs, adapted, slot, depth, found)
    has_place, has_triple = found.place >= 0, found.triple_row >= 0
    has_pair, has_token, has_usual = found.pair_row >= 0, found.token_row >= 0, found.usual >= 0
    shared = 0.0
    if not has_place:
        shared += weights[frame[_AT_PLACE]]
    if not has_triple:
        shared += weights[frame[_AT_TRIPLE]]
    if not has_pair:
        shared += weights[frame[_AT_PAIR]] + weights[frame[_AT_PAIR_MEAN]]
    if not has_token:
        shared += weights[frame[_AT_TOKEN]] + weights[frame[_AT_TOKEN_MEAN]]
    if not has_usual:
        shared += weights[frame[_AT_USUAL]]
    plain = _copied(weights, adapted, slot, 0, 0, 0, 0, 0, 0, False, found, frame[_AT_STREAK], frame[_AT_TREND])
    for candidate in range(found.num_candidates):
        own, pooled = int(candidates[candidate, OWN_LENGTH]), int(candidates[candidate, POOL_LENGTH])
        kind = 2
        logit = shared + plain
        if own > 0 or pooled > 0:
            own_votes = int(candidates[candidate, OWN_VOTES])
            kind = 0 if own_votes > 0 else (1 if pooled > 0 else 2)
            logit = shared + _copied(
                weights,
                adapted,
                slot,
                own,
                own_votes,
                int(candidates[candidate, OWN_FOLLOWED]),
                pooled,
                int(candidates[candidate, POOL_VOTES]),
                int(candidates[candidate, POOL_FOLLOWED]),
                candidate == found.latest,
                found,
                frame[_AT_STREAK],
                frame[_AT_TREND],
            )
        if has_place:
            logit += weights[frame[_AT_PLACE] + max(1, int(candidates[candidate, IN_PLACE]))]
        if has_triple:
            logit += weights[frame[_AT_TRIPLE] + max(1, int(candidates[candidate, IN_TRIPLE]))]
        if has_pair:
            logit += weights[frame[_AT_PAIR] + max(1, int(candidates[candidate, IN_PAIR]))]
            logit += weights[frame[_AT_PAIR_MEAN] + max(1, int(candidates[candidate, IN_PAIR_MEAN]))]
        if has_token:
            logit += weights[frame[_AT_TOKEN] + max(1, int(candidates[candidate, IN_TOKEN]))]
            logit += weights[frame[_AT_TOKEN_MEAN] + max(1, int(candidates[candidate, IN_TOKEN_MEAN]))]
        if has_usual:
            logit += weights[frame[_AT_USUAL] + max(1, int(candidates[candidate, IN_USUAL]))]
        seen = _distance(recent, slot, int(candidates[candidate, ID]), num_tokens)
        logits[candidate] = temperature * (logit + weights[table.AT_SEEN + seen * 3 + kind])


@jit
def _copied(
    weights: NDArray[np.float64],
    adapted: NDArray[np.float64],
    slot: int,
    own: int,
    own_votes: int,
    own_followed: int,
    pooled: int,
    pool_votes: int,
    pool_followed: int,
    is_latest: bool,
    found: Evidence,
    at_streak: int,
    at_trend: int,
) -> float:
    """What matches, or their lack, add to a logit."""
    logit = 0.0
    for weight in copied_features(
        own,
        own_votes,
        own_followed,
        pooled,
        pool_votes,
        pool_followed,
        is_latest,
        found.longest_own,
        found.own_votes,
        found.pool_votes,
        at_streak,
        at_trend,
    ):
        logit += weights[weight]
    return logit + float(adapted[slot, SUPPORT_BIAS + support_class(own, pooled)])


@jit
def candidate_features(
    tokens: NDArray[np.int32],
    pairs: NDArray[np.int32],
    adapted: NDArray[np.float64],
    recent: NDArray[np.int32],
    candidates: NDArray[np.int32],
    slot: int,
    num_tokens: int,
    depth: int,
    found: Evidence,
    candidate: int,
) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int]:
    """The weights whose sum, with the bias of its support class, is the candidate's logit before temperature."""
    frame = _frame(tokens, pairs, adapted, slot, depth, found)
    own, pooled = int(candidates[candidate, OWN_LENGTH]), int(candidates[candidate, POOL_LENGTH])
    own_votes = int(candidates[candidate, OWN_VOTES])
    kind = 0 if own_votes > 0 else (1 if pooled > 0 else 2)
    copied = copied_features(
        own,
        own_votes,
        int(candidates[candidate, OWN_FOLLOWED]),
        pooled,
        int(candidates[candidate, POOL_VOTES]),
        int(candidates[candidate, POOL_FOLLOWED]),
        candidate == found.latest,
        found.longest_own,
        found.own_votes,
        found.pool_votes,
        frame[_AT_STREAK],
        frame[_AT_TREND],
    )
    return (
        *copied,
        frame[_AT_PLACE] + _in_row(int(candidates[candidate, IN_PLACE]), found.place),
        frame[_AT_TRIPLE] + _in_row(int(candidates[candidate, IN_TRIPLE]), found.triple_row),
        frame[_AT_PAIR] + _in_row(int(candidates[candidate, IN_PAIR]), found.pair_row),
        frame[_AT_PAIR_MEAN] + _in_row(int(candidates[candidate, IN_PAIR_MEAN]), found.pair_row),
        frame[_AT_TOKEN] + _in_row(int(candidates[candidate, IN_TOKEN]), found.token_row),
        frame[_AT_TOKEN_MEAN] + _in_row(int(candidates[candidate, IN_TOKEN_MEAN]), found.token_row),
        frame[_AT_USUAL] + _in_row(int(candidates[candidate, IN_USUAL]), found.usual),
        table.AT_SEEN + _distance(recent, slot, int(candidates[candidate, ID]), num_tokens) * 3 + kind,
    )


@jit
def _in_row(bucket: int, row: int) -> int:
    return max(bucket, table.NOT_IN_ROW) if row >= 0 else table.NO_ROW


@jit
def _distance(recent: NDArray[np.int32], slot: int, token: int, num_tokens: int) -> int:
    """1 if the request's text does not hold the token, as far as is known, else the bucket of how long ago it did."""
    place = last_place(recent, slot, token)
    return table.distance_bucket(num_tokens - 1 - place) if place >= 0 else 1


@jit
def _pair_count(count: int) -> int:
    return 0 if count < 2 else (1 if count < 4 else (2 if count < 10 else 3))


@jit
def _token_count(count: int) -> int:
    return 0 if count < 2 else (1 if count < 6 else (2 if count < 25 else 3))
