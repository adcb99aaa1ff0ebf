"""What drafters learn, put together: weights of many, and texts of one.

A weight counts by how much its drafter has learned of it itself (squared gradients since its start, which are the
precision that Adagrad steps by), so that what several inherited of one ancestor is not counted again with each.
"""

from collections.abc import Sequence

import numpy as np

from goose.anisotropic.weights import Weights

__all__ = ["merged", "since"]

# Squared gradients that a weight starts with at most, so that it still follows a target that differs; as in fitting.
_MOST_SQUARES = 10.0
_BASE_SQUARES = 1.0


def since(now: Weights, start: Weights) -> Weights:
    """The values of now, with the squared gradients that have come since the start."""
    return Weights(now.values, np.maximum(now.squares - start.squares, 0.0))


def merged(base: Weights, learned: Sequence[Weights]) -> Weights:
    """The mean of what was learned, by weight; `learned` are results of `since`, or means of some by their squares.

    The base counts as one more drafter, that has learned little: the others started from it, and it is in what they
    came to.
    """
    precision, squares = np.minimum(base.squares, _BASE_SQUARES), base.squares.copy()
    sums = base.values * precision
    for one in learned:
        sums += one.values * one.squares
        precision += one.squares
        squares += one.squares
    values = np.where(precision > 0, sums / np.maximum(precision, 1e-12), base.values)
    return Weights(values, np.minimum(squares, np.maximum(base.squares, _MOST_SQUARES)))
