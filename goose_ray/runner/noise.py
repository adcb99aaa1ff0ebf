"""Gumbel noise keyed by (seed, output position, token): stateless, the same on every device and in every batch.

A key for (seed, output position) comes from Philox; the token addresses the SplitMix64 stream that starts there
(Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Knows nothing of logits.
"""

import numpy as np
import torch

from goose.random import philox4x32
from goose.tree import IntArray

__all__ = ["gumbel", "noise_keys", "rows_at_once"]

# Elements of noise made together: what stays in a core's cache.
_AT_ONCE = 1 << 16

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = (1 << 64) - 1
# Separates these keys from `goose.random.uniform`, whose counters have zero in this word.
_COUNTER_DOMAIN = 1


def noise_keys(seeds: list[int], output_positions: IntArray) -> IntArray:
    """[n] integers of any size, taken modulo 2**64, and [n] positions -> [n] int64 keys."""
    seed = np.array([value & _WORD for value in seeds], dtype=np.uint64)
    position = output_positions.astype(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    domain = np.full(seed.shape, _COUNTER_DOMAIN, dtype=np.uint64)
    high_word, low_word, _, _ = philox4x32(
        (position & low, position >> half, domain, np.zeros_like(domain)), (seed & low, seed >> half)
    )
    return (high_word << half | low_word).view(np.int64)


def gumbel(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """keys [n, 1] int64, token_ids [n or 1, m] int64 -> [n, m] float32 standard Gumbel noise."""
    words = keys + (token_ids + 1).mul_(_signed(_GAMMA))
    words.bitwise_xor_(_shift(words, 30)).mul_(_signed(_MIX_1))
    words.bitwise_xor_(_shift(words, 27)).mul_(_signed(_MIX_2))
    words.bitwise_xor_(_shift(words, 31))
    # 52 bits, centred: strictly inside (0, 1), with full relative precision at the small values, which decide who wins.
    # The bound keeps the float32 below 1, where the exponential would be infinite.
    uniform = _shift(words, 12).to(torch.float32).add_(0.5).mul_(2.0**-52).clamp_(max=1.0 - 2.0**-24)
    exponential = uniform.neg_().log1p_().neg_()
    return exponential.log_().neg_()


def rows_at_once(num_tokens: int) -> int:
    """How many rows of noise for so many tokens each to make together."""
    return max(1, _AT_ONCE // num_tokens)


def _shift(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift: torch's is arithmetic on int64."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
