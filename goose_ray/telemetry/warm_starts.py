"""What replicas have learned, kept for those that start: weights by value, texts where they lie.

Weights of all are pooled, by how much each has learned itself. Texts stay in Ray's object store, whose objects end with
the process that put them there, so references are kept of several replicas: the newest first. Knows nothing of Ray; to
it a reference is whatever the publisher gave. Texts of requests with a cache salt never get here: nobody exports them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from goose.anisotropic.features import NUM_WEIGHTS
from goose.anisotropic.sharing import pooled
from goose.anisotropic.weights import Weights

__all__ = ["Offer", "WarmStart", "WarmStarts"]

_MAX_OFFERS, _MAX_TEXTS = 256, 4
_INHERITED = "inherited"


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Of one incarnation; each replaces the one before."""

    incarnation: str
    model: str
    # values and what was learned since the replica's own start, see `goose.anisotropic.sharing`
    weights: Weights
    # a reference to `KnownTexts`, None if texts are not shared or there are none
    texts: Any = None
    num_text_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    # None if nobody of the model has learned anything yet
    weights: Weights | None
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
        return WarmStart(pooled([offer.weights for offer in offers]) if offers else None, tuple(texts[:_MAX_TEXTS]))

    def snapshot(self) -> dict[str, Any]:
        """JSON-able: weights by model. Texts are nowhere but in memory."""
        models = {offer.model for offer in self._offers.values()}
        starts = {model: self.start(model).weights for model in models}
        return {
            model: {name: array.tolist() for name, array in weights.arrays().items()}
            for model, weights in starts.items()
            if weights is not None
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Raises ValueError or KeyError if it is none. Weights of another feature table are left out."""
        for model, arrays in snapshot.items():
            values, squares = (np.array(arrays[name], dtype=np.float64) for name in ("values", "squares"))
            if values.shape == squares.shape == (NUM_WEIGHTS,) and np.isfinite([values, squares]).all():
                self.publish(Offer(f"{_INHERITED}:{model}", model, Weights(values, squares)))
