"""Hashes that come out alike compiled and in plain Python: no product leaves 62 bits."""

from goose.jit import jit

__all__ = ["fingerprint", "ngram_hash"]

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
def fingerprint(a: int, b: int, c: int, scope: int) -> int:
    """62 bits, never 0: rows are told apart by it alone (two of a million n-grams share one with probability 1e-7)."""
    high = _mixed(
        _mixed(_mixed(_mixed(17, scope + 1, _MULTIPLIER_A), a + 1, _MULTIPLIER_A), b + 2, _MULTIPLIER_A),
        c + 3,
        _MULTIPLIER_A,
    )
    low = _mixed(
        _mixed(_mixed(_mixed(91, c + 3, _MULTIPLIER_B), b + 2, _MULTIPLIER_B), a + 1, _MULTIPLIER_B),
        scope + 1,
        _MULTIPLIER_B,
    )
    return (high << 31 | low) + 1
