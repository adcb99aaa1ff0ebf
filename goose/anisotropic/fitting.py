"""Fits the weights that the model starts with: recorded replies, replayed a few times with falling steps."""

from collections.abc import Callable, Sequence

import numpy as np

from goose.anisotropic.weights import Weights
from goose.policies.anisotropic import AnisotropicConstants, AnisotropicPolicy
from goose.policies.base import TreePolicy
from goose.replay import Recording, replay
from goose.sources.registry import SourceSet
from goose.speculator import Speculator

__all__ = ["NUM_PASSES", "fit"]

# Learning rate of each pass.
_RATES = (0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05)
NUM_PASSES = len(_RATES)
# Squared gradients that a weight ends with at most: as if it had been learned from a few dozen outcomes, so that it
# follows another target soon.
_MOST_SQUARES = 10.0


def fit(
    recordings: Sequence[Recording],
    *,
    stop_token_ids: frozenset[int],
    budget: int = 16,
    seed: int = 0,
    start: Weights | None = None,
    on_reply: Callable[[], object] = lambda: None,
) -> Weights:
    """Starts from `start`, by default from nothing. Each pass starts with empty memory and its own order, so that
    nothing is learned by heart. `on_reply` is called `NUM_PASSES` times a recording.

    Squared gradients are halved after each pass and bounded after the last, so that the weights still follow a target
    that differs from the recorded one.
    """
    weights, order = start or Weights.zero(), np.random.default_rng(seed)
    for rate in _RATES:
        policies: list[AnisotropicPolicy] = []

        def build(
            sources: SourceSet,
            start: Weights = weights,
            rate: float = rate,
            built: list[AnisotropicPolicy] = policies,
        ) -> TreePolicy:
            built.append(AnisotropicPolicy(sources, weights=start, constants=AnisotropicConstants(learning_rate=rate)))
            return built[0]

        speculator = Speculator(policy="anisotropic", budget=budget, builders={"anisotropic": build})
        for number in order.permutation(len(recordings)).tolist():
            replay(recordings[number], speculator, stop_token_ids=stop_token_ids)
            on_reply()
        learned = policies[0].weights
        weights = Weights(learned.values, learned.squares / 2)
    return Weights(weights.values, np.minimum(weights.squares, _MOST_SQUARES))
