"""Synthetic traffic for measuring what drafting costs: texts and successor rows of a made-up target, without a model.

The target is a random Markov source over a large vocabulary. After each token, or for half of them after each pair of
tokens, it has its own ranked successors, drawn by Zipf's law, some contexts almost certain and some hardly predictable;
now and then it copies a span from earlier in its own text, and is then rather sure of it. So tables have something to
learn, texts something to match, and most drafts still fail, as in natural replies. Knows nothing of trees.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goose.tree import FloatArray, IntArray

__all__ = ["MarkovTarget", "Texts"]

# Successors in a row.
_ROW = 10
# Least certainty of the most likely successor; the rest of the certainty is drawn for each context.
_MIN_TOP = 0.1
# Part of what earlier ranks leave over that each further rank takes.
_DECAY = 0.45
# Chance that a copy begins at a token, mean length of a copy, probability of the copied token in its row.
_COPY_RATE, _COPY_LENGTH, _COPY_PROBABILITY = 0.015, 16, 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """One text a row, and the target's rows in it."""

    # [num_texts, length] int64
    token_ids: IntArray
    # [num_texts, length, k] int64 and float32: the successors after each token
    top_ids: IntArray
    top_probs: FloatArray


class MarkovTarget:
    """`seed` decides its language; everything else follows from the tokens."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.vocab_size = vocab_size
        self._seed = np.uint64(seed)

    def rows(self, previous_ids: IntArray, token_ids: IntArray) -> tuple[IntArray, FloatArray]:
        """[num, 10] successors, most likely first, and their probabilities; what they leave over is anyone's."""
        tokens = token_ids.astype(np.uint64)
        by_pair = _mixed(tokens ^ self._seed) & np.uint64(1) == 1
        context = np.where(by_pair, previous_ids, -1).astype(np.uint64)
        state = _mixed(_mixed(tokens + np.uint64(1)) ^ _mixed(context * np.uint64(3)) ^ self._seed)
        top = _MIN_TOP + (0.99 - _MIN_TOP) * np.sqrt(_uniform(state))
        ranks = np.arange(_ROW, dtype=np.uint64)
        # A later rank may repeat a token; its share then counts twice, which no table minds.
        ids = self._zipf(_uniform(_mixed(state[:, None] + ranks + np.uint64(7))))
        rest = (1 - top)[:, None] * _DECAY * (1 - _DECAY) ** np.arange(_ROW - 1)
        return ids, np.concatenate([top[:, None], rest], axis=1).astype(np.float32)

    def write(self, num_texts: int, length: int, rng: np.random.Generator) -> Texts:
        """Texts of the target's own."""
        tokens = np.empty((num_texts, length), np.int64)
        tokens[:, 0] = self._zipf(rng.random(num_texts))
        top_ids = np.empty((num_texts, length, _ROW), np.int64)
        top_probs = np.empty((num_texts, length, _ROW), np.float32)
        every = np.arange(num_texts)
        copied_from, copied_left = np.zeros(num_texts, np.int64), np.zeros(num_texts, np.int64)
        for at in range(length):
            previous = tokens[:, at - 1] if at else np.full(num_texts, -1)
            ids, probs = self.rows(previous, tokens[:, at])
            starts = (copied_left == 0) & (rng.random(num_texts) < _COPY_RATE) & (at > 0)
            copied_from[starts] = rng.integers(0, max(at, 1), int(starts.sum()))
            copied_left[starts] = rng.geometric(1 / _COPY_LENGTH, int(starts.sum()))
            copying = copied_left > 0
            ids[copying, 1:], ids[copying, 0] = ids[copying, :-1], tokens[every, copied_from][copying]
            probs[copying, 1:] = probs[copying, :-1] * np.float32(1 - _COPY_PROBABILITY)
            probs[copying, 0] = _COPY_PROBABILITY
            copied_from += 1
            copied_left = np.maximum(copied_left - 1, 0)
            top_ids[:, at], top_probs[:, at] = ids, probs
            if at + 1 < length:
                rank = (rng.random((num_texts, 1)) > np.cumsum(probs, axis=1)).sum(axis=1)
                other = self._zipf(rng.random(num_texts))
                tokens[:, at + 1] = np.where(rank < _ROW, ids[every, np.minimum(rank, _ROW - 1)], other)
        return Texts(tokens, top_ids, top_probs)

    def _zipf(self, uniform: NDArray[np.float64]) -> IntArray:
        """Token n with a probability of about 1 / n."""
        ids: IntArray = (self.vocab_size**uniform).astype(np.int64) - 1
        return ids


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    numbers = (numbers + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _uniform(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    uniform: NDArray[np.float64] = (numbers >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    return uniform
