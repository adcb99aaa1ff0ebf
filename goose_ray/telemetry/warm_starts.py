"""What replicas have learned, kept for those that start: weights by value, texts where they lie.

Weights of all are pooled, by how much each has learned itself. Texts stay in Ray's object store, whose objects end with
the process that put them there, so references are kept of several replicas: the newest first. Texts of requests
with a cache salt never get here: nobody exports them.

Knows nothing of Ray: a reference is whatever the publisher gave. Nor of the model whose weights these are: to load that
takes seconds, and the aggregator starts before any replica.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LearnedWeights", "Offer", "WarmStart", "WarmStarts"]

_MAX_OFFERS, _MAX_TEXTS = 256, 4
_INHERITED = "inherited"


@dataclass(frozen=True, slots=True, eq=False)
class LearnedWeights:
    """`values`, and `squares`: how much was learned of each since the start (`goose.anisotropic.sharing`)."""

    # [num_weights] float64
    values: NDArray[np.float64]
    squares: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Of one incarnation; each replaces the one before."""

    incarnation: str
    model: str
    weights: LearnedWeights
    # a reference to `KnownTexts`, None if texts are not shared or there are none
    texts: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    # None if nobody of the model has learned anything yet
    weights: LearnedWeights | None
    # references to the texts of a few replicas, the newest offer first
    texts: tuple[Any, ...]


class WarmStarts:
    """The newest offers, bounded."""

    def __init__(self) -> None:
        # incarnation -> offer, the newest last
        self._offers: dict[str, Offer] = {}

    def publish(self, offer: Offer) -> None:
        self._offers.pop(offer.incarnation, None)
        self._offers[offer.incarnation] = offer
        while len(self._offers) > _MAX_OFFERS:
            del self._offers[next(iter(self._offers))]

    def start(self, model: str) -> WarmStart:
        """For a replica of this model; what others have learned is of no use to it."""
        offers = [offer for offer in reversed(self._offers.values()) if offer.model == model]
        texts = [offer.texts for offer in offers if offer.texts is not None]
        return WarmStart(_pooled([offer.weights for offer in offers]), tuple(texts[:_MAX_TEXTS]))

    def snapshot(self) -> dict[str, Any]:
        """JSON-able: weights by model. Texts are nowhere but in memory."""
        models = {offer.model for offer in self._offers.values()}
        starts = {model: self.start(model).weights for model in models}
        return {
            model: {"values": weights.values.tolist(), "squares": weights.squares.tolist()}
            for model, weights in starts.items()
            if weights is not None
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Raises ValueError or KeyError if it is none."""
        for model, arrays in snapshot.items():
            values, squares = (np.array(arrays[name], dtype=np.float64) for name in ("values", "squares"))
            if values.ndim != 1 or values.shape != squares.shape or not np.isfinite([values, squares]).all():
                raise ValueError(f"weights of {model} must be two rows of numbers")
            self.publish(Offer(f"{_INHERITED}:{model}", model, LearnedWeights(values, squares)))


def _pooled(learned: Sequence[LearnedWeights]) -> LearnedWeights | None:
    """One that is worth what all are together, in any order and grouping. Those of another version of the model than
    the newest's, the first, are left out.
    """
    if not learned:
        return None
    alike = [one for one in learned if one.values.shape == learned[0].values.shape]
    squares = np.sum([one.squares for one in alike], axis=0)
    sums = np.sum([one.values * one.squares for one in alike], axis=0)
    return LearnedWeights(np.where(squares > 0, sums / np.maximum(squares, 1e-12), 0.0), squares)
