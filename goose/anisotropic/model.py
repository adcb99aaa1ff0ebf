"""The next-token model: one softmax over all candidates of a node and the outcome "none of them".

    P(candidate j | node) = exp(z_j) / (exp(z_0) + sum_i exp(z_i)),    z = temperature * (sum of weights + bias)

so agreement of sources, their competition and the probability that others have claimed already need no rules of their
own. Weights are learned online from every reached node that was expanded, drafted candidates or not, by Adagrad
(Duchi et al. 2011) on the log loss -log P(what the target chose):

    g = P - [chosen],   G <- G + g^2,   w <- w - rate g / sqrt(1 + G)

Each request also adapts a bias per support class and the inverse temperature, both pulled back to where they started.
"""

import math

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.candidates import gather_candidates
from goose.anisotropic.features import AT_SUPPORT, NUM_CANDIDATE_GROUPS, NUM_NONE_GROUPS, SUPPORT
from goose.anisotropic.occurrences import find_occurrences
from goose.anisotropic.scoring import set_features, set_none_features
from goose.anisotropic.workspace import SUPPORT_BIAS, TEMPERATURE, Candidates, Memory, Requests, Workspace
from goose.jit import jit

__all__ = ["expand", "learn"]

# Steps of a request's own biases and temperature, and how fast they fall back (chosen on recordings).
_BIAS_RATE, _BIAS_DECAY = 0.1, 0.01
_TEMPERATURE_RATE, _TEMPERATURE_DECAY, _MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.01, 0.01, 0.6, 1.6
# Candidates that were as wrong as they were thought to be teach nothing and cost as much as the others.
_MIN_GRADIENT = 1e-3


@jit
def expand(memory: Memory, requests: Requests, work: Workspace, slot: int, node: int, expansion: int) -> None:
    """Fills the expansion of a node: occurrences, candidates, features, logits, probabilities."""
    work.expansions[node] = expansion
    find_occurrences(memory, requests, work, slot, node, expansion)
    evidence = gather_candidates(memory, requests, work, slot, node, expansion)
    set_none_features(memory, requests, work, slot, node, expansion, evidence)
    set_features(memory, requests, work, slot, node, expansion, evidence)
    _set_probabilities(
        memory.weights,
        requests.adapted,
        work.candidates,
        work.none_features,
        work.none_logits,
        work.candidate_logits,
        work.candidate_probs,
        slot,
        expansion,
    )


@jit
def _set_probabilities(
    weights: NDArray[np.float64],
    adapted: NDArray[np.float64],
    lists: Candidates,
    none_features: NDArray[np.int16],
    none_logits: NDArray[np.float64],
    logits: NDArray[np.float64],
    probs: NDArray[np.float64],
    slot: int,
    expansion: int,
) -> None:
    temperature = adapted[slot, TEMPERATURE]
    none = 0.0
    for group in range(NUM_NONE_GROUPS):
        none += weights[none_features[expansion, group]]
    none *= temperature
    none_logits[expansion] = none
    largest = none
    count, features = int(lists.counts[expansion]), lists.features
    for candidate in range(count):
        logit = adapted[slot, SUPPORT_BIAS + int(features[expansion, candidate, SUPPORT]) - AT_SUPPORT]
        for group in range(NUM_CANDIDATE_GROUPS):
            logit += weights[features[expansion, candidate, group]]
        logit *= temperature
        logits[expansion, candidate] = logit
        largest = max(largest, logit)
    total = math.exp(none - largest)
    for candidate in range(count):
        odds = math.exp(logits[expansion, candidate] - largest)
        probs[expansion, candidate] = odds
        total += odds
    for candidate in range(count):
        probs[expansion, candidate] /= total


@jit
def learn(
    memory: Memory, requests: Requests, work: Workspace, slot: int, expansion: int, chosen: int, rate: float
) -> None:
    """One step on -log P(chosen token) at an expanded node."""
    weights, squares = memory.weights, memory.squares
    adapted = requests.adapted[slot]
    count = int(work.candidates.counts[expansion])
    hit, none_prob = -1, 1.0
    for candidate in range(count):
        none_prob -= work.candidate_probs[expansion, candidate]
        if work.candidates.ids[expansion, candidate] == chosen:
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
        features = work.candidates.features[expansion, candidate]
        bias = SUPPORT_BIAS + int(features[SUPPORT]) - AT_SUPPORT
        adapted[bias] -= _BIAS_RATE * gradient + _BIAS_DECAY * adapted[bias]
        for group in range(NUM_CANDIDATE_GROUPS):
            weight = features[group]
            squares[weight] += gradient * gradient
            weights[weight] -= rate * gradient / math.sqrt(squares[weight] + 1.0)
    moved = _TEMPERATURE_RATE * by_temperature + _TEMPERATURE_DECAY * (adapted[TEMPERATURE] - 1.0)
    adapted[TEMPERATURE] = min(_MAX_TEMPERATURE, max(_MIN_TEMPERATURE, adapted[TEMPERATURE] - moved))
