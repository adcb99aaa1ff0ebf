"""The next-token model: one softmax over all candidates of a node and the outcome "none of them".

    P(candidate j | node) = exp(z_j) / (exp(z_0) + sum_i exp(z_i)),    z = temperature * (sum of weights + bias)

so agreement of sources, their competition and the probability that others have claimed already need no rules of their
own. Weights are learned online from every node of the verified path, drafted candidates or not, by Adagrad
(Duchi et al. 2011) on the log loss -log P(what the target chose):

    g = P - [chosen],   G <- G + g^2,   w <- w - rate g / sqrt(1 + G)

Each request also adapts a bias per support class and the inverse temperature, both pulled back to where they started.
"""

import math

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.candidates import Evidence, gather_candidates
from goose.anisotropic.features import AT_SUPPORT
from goose.anisotropic.occurrences import find_at_anchor, find_below
from goose.anisotropic.scoring import candidate_features, none_features, score
from goose.anisotropic.usual import find_usual
from goose.anisotropic.workspace import (
    DEPTH,
    EXPANSION,
    ID,
    MAX_CANDIDATES,
    PARENT,
    SUPPORT_BIAS,
    TEMPERATURE,
    Memory,
    Requests,
    Workspace,
)
from goose.jit import inlined, jit

__all__ = ["expand", "learn"]

# Steps of a request's own biases and temperature, and how fast they fall back (chosen on recordings).
_BIAS_RATE, _BIAS_DECAY = 0.1, 0.01
_TEMPERATURE_RATE, _TEMPERATURE_DECAY, _MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.01, 0.01, 0.6, 1.6
# Candidates that were as wrong as they were thought to be teach nothing and cost as much as the others.
_MIN_GRADIENT = 1e-3
# Keeps exp() finite whatever was learned.
_MAX_LOGIT = 80.0
# Place of the feature SUPPORT among those of `candidate_features`.
_SUPPORT = 5


@inlined
def expand(memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int) -> Evidence:
    """Fills the expansion of a node, and candidates, logits and odds; the last odds are the sum of all."""
    work.nodes[node, EXPANSION] = expansion
    texts, successors, end = memory.texts, memory.successors, requests.ends[slot]
    if work.nodes[node, DEPTH] == 0:
        find_at_anchor(memory, requests, work, slot, node, expansion)
    else:
        find_below(
            texts.records,
            texts.own_heads,
            texts.pool_heads,
            work.nodes,
            work.own,
            work.pool,
            work.num_occurrences,
            requests.starts[slot],
            end,
            requests.scopes[slot],
            node,
            int(work.nodes[int(work.nodes[node, PARENT]), EXPANSION]),
            expansion,
        )
    found = gather_candidates(
        texts.records,
        texts.rows,
        successors.tokens,
        successors.pairs,
        successors.triples,
        successors.usual.successors,
        find_usual(successors.usual.scopes, requests.scopes[slot]),
        work.nodes,
        work.own,
        work.pool,
        work.num_occurrences,
        work.candidates,
        work.stamps,
        requests.recent,
        slot,
        end,
        node,
        expansion,
    )
    score(
        memory.weights,
        successors.tokens,
        successors.pairs,
        requests.adapted,
        requests.recent,
        work.candidates,
        work.logits,
        slot,
        end + 1 - requests.starts[slot],
        int(work.nodes[node, DEPTH]),
        found,
    )
    _set_odds(work.logits, work.odds, found.num_candidates)
    return found


@jit
def _set_odds(logits: NDArray[np.float64], odds: NDArray[np.float64], count: int) -> None:
    total = math.exp(min(logits[MAX_CANDIDATES], _MAX_LOGIT))
    for candidate in range(count):
        odds[candidate] = math.exp(min(logits[candidate], _MAX_LOGIT))
        total += odds[candidate]
    odds[MAX_CANDIDATES] = total


@inlined
def learn(
    memory: Memory,
    requests: Requests,
    work: Workspace,
    slot: int,
    depth: int,
    found: Evidence,
    chosen: int,
    rate: float,
) -> None:
    """One step on -log P(chosen token) at the node expanded last."""
    weights, squares, adapted = memory.weights, memory.squares, requests.adapted
    tokens, pairs = memory.successors.tokens, memory.successors.pairs
    num_tokens = requests.ends[slot] + 1 - requests.starts[slot]
    hit, none_prob = -1, 1.0
    for candidate in range(found.num_candidates):
        none_prob -= work.odds[candidate] / work.odds[MAX_CANDIDATES]
        if work.candidates[candidate, ID] == chosen:
            hit = candidate
    gradient = max(none_prob, 0.0) - (1.0 if hit < 0 else 0.0)
    by_temperature = gradient * work.logits[MAX_CANDIDATES]
    for weight in none_features(tokens, pairs, adapted, slot, depth, found):
        squares[weight] += gradient * gradient
        weights[weight] -= rate * gradient / math.sqrt(squares[weight] + 1.0)
    for candidate in range(found.num_candidates):
        gradient = work.odds[candidate] / work.odds[MAX_CANDIDATES] - (1.0 if candidate == hit else 0.0)
        by_temperature += gradient * work.logits[candidate]
        if abs(gradient) < _MIN_GRADIENT:
            continue
        features = candidate_features(
            tokens, pairs, adapted, requests.recent, work.candidates, slot, num_tokens, depth, found, candidate
        )
        bias = SUPPORT_BIAS + features[_SUPPORT] - AT_SUPPORT
        adapted[slot, bias] -= _BIAS_RATE * gradient + _BIAS_DECAY * adapted[slot, bias]
        for weight in features:
            squares[weight] += gradient * gradient
            weights[weight] -= rate * gradient / math.sqrt(squares[weight] + 1.0)
    moved = _TEMPERATURE_RATE * by_temperature + _TEMPERATURE_DECAY * (adapted[slot, TEMPERATURE] - 1.0)
    adapted[slot, TEMPERATURE] = min(_MAX_TEMPERATURE, max(_MIN_TEMPERATURE, adapted[slot, TEMPERATURE] - moved))
