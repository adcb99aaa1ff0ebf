"""The next-token model: one softmax over all candidates of a node and the outcome "none of them".

    P(candidate j | node) = exp(z_j) / (exp(z_0) + sum_i exp(z_i)),    z = temperature * (sum of weights + bias)

so agreement of sources, their competition and the probability that others have claimed already need no rules of their
own. Weights are learned online from every reached node that was expanded, drafted candidates or not, by Adagrad
(Duchi et al. 2011) on the log loss -log P(what the target chose):

    g = P - [chosen],   G <- G + g^2,   w <- w - rate g / sqrt(1 + G)

Each request also adapts a bias per support class and the inverse temperature, both pulled back to where they started.
"""

import math

from goose.anisotropic.candidates import (
    OWN_FOLLOWED,
    OWN_LENGTH,
    OWN_VOTES,
    POOL_FOLLOWED,
    POOL_LENGTH,
    POOL_VOTES,
    Evidence,
    gather_candidates,
)
from goose.anisotropic.features import (
    AT_MERGED_PAIR,
    AT_MERGED_TOKEN,
    AT_NONE_DEPTH,
    AT_NONE_OWN,
    AT_NONE_POOL,
    AT_NONE_ROW,
    AT_NONE_TREND,
    AT_OWN,
    AT_OWN_ROW,
    AT_PAIR,
    AT_PLACE,
    AT_POOL,
    AT_POOL_ROW,
    AT_RECENT,
    AT_SEEN,
    AT_STREAK,
    AT_SUPPORT,
    AT_TOKEN,
    AT_TREND,
    AT_TRIPLE,
    MERGED_PAIR,
    MERGED_TOKEN,
    NOT_IN_ROW,
    NUM_CANDIDATE_GROUPS,
    NUM_CONTEXTS,
    NUM_DEPTHS,
    NUM_NONE_GROUPS,
    NUM_PROBABILITIES,
    NUM_SHARES,
    NUM_STREAK_LENGTHS,
    NUM_TIERS,
    NUM_TREND_LENGTHS,
    NUM_TRENDS,
    OWN,
    OWN_ROW,
    PAIR,
    PLACE,
    POOL,
    POOL_ROW,
    RECENT,
    SEEN,
    STREAK,
    SUPPORT,
    TOKEN,
    TREND,
    TRIPLE,
    distance_bucket,
    length_bucket,
    share_bucket,
    span_bucket,
    streak_bucket,
    trend_bucket,
)
from goose.anisotropic.hashing import ngram_hash
from goose.anisotropic.occurrences import find_occurrences
from goose.anisotropic.workspace import (
    OWN_TREND,
    STREAK as STREAK_SO_FAR,
    SUPPORT_BIAS,
    TEMPERATURE,
    TOP_TREND,
    Memory,
    Requests,
    Workspace,
)
from goose.jit import jit

__all__ = ["expand", "learn"]

# Steps of a request's own biases and temperature, and how fast they fall back (chosen on recordings).
_BIAS_RATE, _BIAS_DECAY = 0.1, 0.01
_TEMPERATURE_RATE, _TEMPERATURE_DECAY, _MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.01, 0.01, 0.6, 1.6
# Candidates that were as wrong as they were thought to be teach nothing and cost as much as the others.
_MIN_GRADIENT = 1e-3
# Links followed to the last time a token was seen: hashes of other tokens are skipped.
_SEEN_STEPS = 2


@jit
def expand(memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int) -> None:
    """Fills the expansion of a node: occurrences, candidates, features, logits, probabilities."""
    work.expansions[node] = expansion
    find_occurrences(memory, requests, work, slot, node, expansion)
    evidence = gather_candidates(memory, requests, work, slot, node, expansion)
    _set_none_features(memory, requests, work, slot, node, expansion, evidence)
    _set_features(memory, requests, work, slot, node, expansion, evidence)
    _set_probabilities(memory, requests, work, slot, expansion)


@jit
def _set_none_features(
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
    trends = _trends(requests, slot)
    features = work.none_features[expansion]
    features[0] = (
        AT_NONE_OWN + length_bucket(found.longest_own) * NUM_SHARES + min(int(work.num_own[expansion]), NUM_SHARES - 1)
    )
    features[1] = AT_NONE_ROW + rest * 4 + tier
    features[2] = AT_NONE_DEPTH + min(int(work.depths[node]), NUM_DEPTHS - 1)
    features[3] = AT_NONE_POOL + length_bucket(found.longest_pool)
    features[4] = AT_NONE_TREND + trends


@jit
def _trends(requests: Requests, slot: int) -> int:
    own, top = requests.adapted[slot, OWN_TREND], requests.adapted[slot, TOP_TREND]
    return trend_bucket(own) * NUM_TRENDS + trend_bucket(top)


@jit
def _set_features(
    memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int, found: Evidence
) -> None:
    """Turns votes and row buckets of all candidates into indices of weights."""
    pairs, tokens = memory.successors.pairs, memory.successors.tokens
    span = max(span_bucket(found.longest_own), span_bucket(found.longest_pool))
    has_place, has_pair = found.place >= 0, found.pair_row >= 0
    has_token, has_triple = found.token_row >= 0, found.triple_row >= 0
    tier = 2 if has_triple else (1 if has_pair else 0)
    context = NUM_CONTEXTS - 1 if has_triple else min(span, NUM_CONTEXTS - 2)
    pair_count = _pair_count(int(pairs.counts[found.pair_row])) if has_pair else 0
    token_count = _token_count(int(tokens.counts[found.token_row])) if has_token else 0
    at_place = AT_PLACE + span * NUM_PROBABILITIES
    at_triple = AT_TRIPLE + span * NUM_PROBABILITIES
    at_pair = AT_PAIR + context * NUM_PROBABILITIES
    at_token = AT_TOKEN + tier * NUM_PROBABILITIES
    at_merged_pair = AT_MERGED_PAIR + (pair_count * NUM_CONTEXTS + context) * NUM_PROBABILITIES
    at_merged_token = AT_MERGED_TOKEN + (token_count * NUM_TIERS + tier) * NUM_PROBABILITIES
    streak = int(requests.adapted[slot, STREAK_SO_FAR]) + int(work.depths[node])
    at_streak = AT_STREAK + streak_bucket(streak) * NUM_STREAK_LENGTHS
    at_trend = AT_TREND + _trends(requests, slot) * NUM_TREND_LENGTHS
    for candidate in range(work.num_candidates[expansion]):
        votes, features = work.votes[candidate], work.features[expansion, candidate]
        own, pooled = int(votes[OWN_LENGTH]), int(votes[POOL_LENGTH])
        own_votes = int(votes[OWN_VOTES])
        features[OWN] = AT_OWN + length_bucket(own) * NUM_SHARES + share_bucket(own_votes, found.own_votes)
        features[OWN_ROW] = AT_OWN_ROW + span_bucket(own) * NUM_PROBABILITIES + int(votes[OWN_FOLLOWED])
        features[POOL] = (
            AT_POOL + length_bucket(pooled) * NUM_SHARES + share_bucket(int(votes[POOL_VOTES]), found.pool_votes)
        )
        features[POOL_ROW] = AT_POOL_ROW + span_bucket(pooled) * NUM_PROBABILITIES + int(votes[POOL_FOLLOWED])
        features[PLACE] = at_place + _in_row(int(features[PLACE]), has_place)
        features[TRIPLE] = at_triple + _in_row(int(features[TRIPLE]), has_triple)
        features[PAIR] = at_pair + _in_row(int(features[PAIR]), has_pair)
        features[TOKEN] = at_token + _in_row(int(features[TOKEN]), has_token)
        features[MERGED_PAIR] = at_merged_pair + _in_row(int(features[MERGED_PAIR]), has_pair)
        features[MERGED_TOKEN] = at_merged_token + _in_row(int(features[MERGED_TOKEN]), has_token)
        features[RECENT] = AT_RECENT + span_bucket(own) * 2 + (1 if candidate == found.latest else 0)
        kind = 0 if own_votes > 0 else (1 if pooled > 0 else 2)
        seen = _distance(memory, requests, slot, int(work.candidate_ids[expansion, candidate]))
        features[SEEN] = AT_SEEN + seen * 3 + kind
        features[SUPPORT] = AT_SUPPORT + _support_class(own, pooled)
        features[STREAK] = at_streak + _streak_length(own, found.longest_own)
        features[TREND] = at_trend + _trend_length(own, found.longest_own)


@jit
def _in_row(bucket: int, has_row: bool) -> int:
    return max(bucket, NOT_IN_ROW) if has_row else 0


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
def _distance(memory: Memory, requests: Requests, slot: int, token: int) -> int:
    """1 if the request's text does not hold the token, else the bucket of how long ago it did."""
    texts = memory.texts
    start, end = requests.starts[slot], requests.ends[slot]
    if texts.token_ids[end] == token:
        return distance_bucket(0)
    code = ngram_hash(token, -1, -1, -1, requests.owners[slot]) & (texts.own_heads.shape[1] - 1)
    position = int(texts.own_heads[0, code]) - 1
    for _ in range(_SEEN_STEPS):
        if position < 0:
            break
        if start <= position < end and texts.token_ids[position] == token:
            return distance_bucket(end - position)
        position = int(texts.own_links[position, 0]) - 1
    return 1


@jit
def _set_probabilities(memory: Memory, requests: Requests, work: Workspace, slot: int, expansion: int) -> None:
    weights, count = memory.weights, int(work.num_candidates[expansion])
    temperature = requests.adapted[slot, TEMPERATURE]
    none = 0.0
    for group in range(NUM_NONE_GROUPS):
        none += weights[work.none_features[expansion, group]]
    none *= temperature
    work.none_logits[expansion] = none
    largest = none
    for candidate in range(count):
        features = work.features[expansion, candidate]
        logit = requests.adapted[slot, SUPPORT_BIAS + int(features[SUPPORT]) - AT_SUPPORT]
        for group in range(NUM_CANDIDATE_GROUPS):
            logit += weights[features[group]]
        logit *= temperature
        work.candidate_logits[expansion, candidate] = logit
        largest = max(largest, logit)
    total = math.exp(none - largest)
    for candidate in range(count):
        odds = math.exp(work.candidate_logits[expansion, candidate] - largest)
        work.candidate_probs[expansion, candidate] = odds
        total += odds
    for candidate in range(count):
        work.candidate_probs[expansion, candidate] /= total


@jit
def learn(
    memory: Memory, requests: Requests, work: Workspace, slot: int, expansion: int, chosen: int, rate: float
) -> None:
    """One step on -log P(chosen token) at an expanded node."""
    weights, squares = memory.weights, memory.squares
    adapted = requests.adapted[slot]
    count = int(work.num_candidates[expansion])
    hit, none_prob = -1, 1.0
    for candidate in range(count):
        none_prob -= work.candidate_probs[expansion, candidate]
        if work.candidate_ids[expansion, candidate] == chosen:
            hit = candidate
    gradient = max(none_prob, 0.0) - (1.0 if hit < 0 else 0.0)
    by_temperature = gradient * work.none_logits[expansion]
    for group in range(NUM_NONE_GROUPS):
        weight = work.none_features[expansion, group]
        squares[weight] += gradient * gradient
        weights[weight] -= rate * gradient / math.sqrt(squares[weight] + 1.0)
    for candidate in range(count):
        gradient = work.candidate_probs[expansion, candidate] - (1.0 if candidate == hit else 0.0)
        by_temperature += gradient * work.candidate_logits[expansion, candidate]
        if abs(gradient) < _MIN_GRADIENT:
            continue
        features = work.features[expansion, candidate]
        bias = SUPPORT_BIAS + int(features[SUPPORT]) - AT_SUPPORT
        adapted[bias] -= _BIAS_RATE * gradient + _BIAS_DECAY * adapted[bias]
        for group in range(NUM_CANDIDATE_GROUPS):
            weight = features[group]
            squares[weight] += gradient * gradient
            weights[weight] -= rate * gradient / math.sqrt(squares[weight] + 1.0)
    moved = _TEMPERATURE_RATE * by_temperature + _TEMPERATURE_DECAY * (adapted[TEMPERATURE] - 1.0)
    adapted[TEMPERATURE] = min(_MAX_TEMPERATURE, max(_MIN_TEMPERATURE, adapted[TEMPERATURE] - moved))
