"""Uniform draws keyed by (seed, position): stateless, so any draw can be repeated alone, in any batch, in any order.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), vectorised over
arrays. The seed is the 64-bit key, the position the low half of the counter. Knows nothing of tokens.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["philox4x32", "uniform"]

WordArray = NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(
    counter: tuple[WordArray, WordArray, WordArray, WordArray], key: tuple[WordArray, WordArray]
) -> tuple[WordArray, WordArray, WordArray, WordArray]:
    """Ten rounds of Philox on arrays of one shape. Words are 32-bit values held in uint64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(_ROUNDS):
        r0 = (k0 + np.uint64(number * _WEYL_0 & 0xFFFFFFFF)) & _LOW
        r1 = (k1 + np.uint64(number * _WEYL_1 & 0xFFFFFFFF)) & _LOW
        # The products of two 32-bit words fit 64 bits: high and low word of each are the round's output.
        p0 = c0 * _MULTIPLIER_0
        p1 = c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ r0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ r1, p0 & _LOW
    return c0, c1, c2, c3


def uniform(seeds: ArrayLike, positions: ArrayLike) -> NDArray[np.float64]:
    """Draws in [0, 1) with 53 random bits, one for each (seed, position) after broadcasting.

    Seeds are 64-bit integers, signed or not (-1 and 2**64 - 1 are the same seed); positions are 0 or more.
    """
    seed, position = np.broadcast_arrays(_as_words(seeds), _as_words(positions))
    zero = np.zeros(seed.shape, np.uint64)
    w0, w1, _, _ = philox4x32((position & _LOW, position >> _HALF, zero, zero), (seed & _LOW, seed >> _HALF))
    bits = (w0 << _HALF | w1) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _as_words(values: ArrayLike) -> WordArray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"seeds and positions are 64-bit integers, not {array.dtype}")
    return array.astype(np.uint64)
