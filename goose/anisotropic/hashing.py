"""Hashes that come out alike compiled and in plain Python: no product leaves 62 bits."""

from goose.jit import jit

__all__ = ["extended", "ngram_hash", "seeded"]

_31_BITS = 0x7FFFFFFF
# Odd, below 2**28, bits well spread: a product with a 31-bit number stays below 2**59 and its upper half is mixed.
_MULTIPLIER_A, _MULTIPLIER_B = 0x9E3779B, 0x85EBCA7


@jit
def _mixed(state: int, value: int, multiplier: int) -> int:
    product = ((state ^ value) & _31_BITS) * multiplier
    return (product ^ (product >> 27)) & _31_BITS


@jit
def ngram_hash(a: int, b: int, c: int, d: int, scope: int) -> int:
    """31 bits of up to four tokens, latest first, -1 where there are fewer, and of the scope they are looked up in."""
    state = _mixed(scope + 1, a + 1, _MULTIPLIER_A)
    state = _mixed(state, b + 2, _MULTIPLIER_B)
    state = _mixed(state, c + 3, _MULTIPLIER_A)
    return _mixed(state, d + 5, _MULTIPLIER_B)


@jit
def seeded(scope: int, multiplier: int) -> int:
    """Where `extended` begins; `multiplier` 0 or 1 gives independent hashes."""
    return _mixed(17 + 74 * multiplier, scope + 1, _MULTIPLIER_B if multiplier else _MULTIPLIER_A)


@jit
def extended(state: int, token: int, multiplier: int) -> int:
    """31 bits of one more token in front of those hashed so far."""
    return _mixed(state, token + 1, _MULTIPLIER_B if multiplier else _MULTIPLIER_A)
