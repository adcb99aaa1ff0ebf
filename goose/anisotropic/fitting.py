"""Fits the weights that the model starts with: recorded replies, replayed a few times with falling steps."""

from collections.abc import Callable, Sequence

import numpy as np

from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.successors import MIN_PROBABILITY
from goose.anisotropic.texts import NUM_SUCCESSORS
from goose.anisotropic.weights import Weights
from goose.policies.anisotropic import AnisotropicConstants, AnisotropicPolicy
from goose.policies.base import TreePolicy
from goose.replay import Recording, replay
from goose.sources.registry import SourceSet
from goose.speculator import Speculator

__all__ = ["NUM_PASSES", "fit", "known_texts"]

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
    remembering: bool = False,
    on_reply: Callable[[], object] = lambda: None,
) -> Weights:
    """Starts from `start`, by default from nothing. Each pass starts with empty memory and its own order, so that
    nothing is learned by heart. `on_reply` is called `NUM_PASSES` times a recording.

    `remembering`: the weights will be used beside the texts of these recordings, so each pass is made on one half of
    them, drawn anew, by a memory that holds the other half.

    Squared gradients are halved after each pass and bounded after the last, so that the weights still follow a target
    that differs from the recorded one.
    """
    weights, order = start or Weights.zero(), np.random.default_rng(seed)
    for rate in _RATES:
        policies: list[AnisotropicPolicy] = []
        numbers = order.permutation(len(recordings)).tolist()
        num_remembered = len(numbers) // 2 if remembering else 0
        texts = known_texts([recordings[number] for number in numbers[:num_remembered]])

        def build(
            sources: SourceSet,
            start: Weights = weights,
            rate: float = rate,
            texts: KnownTexts = texts,
            built: list[AnisotropicPolicy] = policies,
        ) -> TreePolicy:
            constants = AnisotropicConstants(learning_rate=rate)
            built.append(AnisotropicPolicy(sources, weights=start, texts=texts, constants=constants))
            return built[0]

        speculator = Speculator(policy="anisotropic", budget=budget, builders={"anisotropic": build})
        for place, number in enumerate(numbers):
            if place >= num_remembered:
                replay(recordings[number], speculator, stop_token_ids=stop_token_ids)
            on_reply()
        learned = policies[0].weights
        weights = Weights(learned.values, learned.squares / 2)
    return Weights(weights.values, np.minimum(weights.squares, _MOST_SQUARES))


def known_texts(recordings: Sequence[Recording]) -> KnownTexts:
    """The recordings as texts to start from."""
    if not recordings:
        return KnownTexts.none()
    tokens = [np.concatenate([one.prompt_ids, one.output_ids]) for one in recordings]
    ids, probs = [], []
    for one, own in zip(recordings, tokens, strict=True):
        width = min(NUM_SUCCESSORS, one.top_ids.shape[1])
        rows = np.zeros((len(own), NUM_SUCCESSORS), dtype=np.int32), np.zeros((len(own), NUM_SUCCESSORS), np.float16)
        # What is too unlikely to be drafted from would only take room.
        likely = one.top_probs[:, :width] >= MIN_PROBABILITY
        rows[0][: len(likely), :width] = np.where(likely, one.top_ids[:, :width], 0)
        rows[1][: len(likely), :width] = np.where(likely, one.top_probs[:, :width], 0.0)
        ids.append(rows[0])
        probs.append(rows[1])
    return KnownTexts(
        token_ids=np.concatenate(tokens).astype(np.int32),
        lengths=np.array([len(own) for own in tokens], dtype=np.int64),
        prompt_lengths=np.array([len(one.prompt_ids) for one in recordings], dtype=np.int64),
        top_ids=np.concatenate(ids),
        top_probs=np.concatenate(probs),
    )
