"""Where each token was last in a request's own text: a small table a request, which a tree's building keeps at hand.

Direct-mapped by the token's lower bits, with its upper bits as a tag, so that what is found is true; of two tokens that
share a place the later stays, and the other counts as not seen.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.workspace import NUM_RECENT, RECENT_BITS
from goose.jit import jit, prefetch

__all__ = ["ask_last_place", "last_place", "note_place"]

_PLACE_MASK = (1 << RECENT_BITS) - 1
_TOKEN_BITS = NUM_RECENT.bit_length() - 1


@jit
def note_place(recent: NDArray[np.int32], slot: int, token: int, place: int) -> None:
    """`place`: number of tokens before it in the request's text; beyond 2^22 nothing is noted."""
    if place < _PLACE_MASK:
        recent[slot, token & (NUM_RECENT - 1)] = (token >> _TOKEN_BITS & 511) << RECENT_BITS | (place + 1)


@jit
def ask_last_place(recent: NDArray[np.int32], slot: int, token: int) -> None:
    """Asks for what `last_place` will read."""
    prefetch(recent, slot, token & (NUM_RECENT - 1))


@jit
def last_place(recent: NDArray[np.int32], slot: int, token: int) -> int:
    """The latest place noted for the token, -1: none."""
    entry = int(recent[slot, token & (NUM_RECENT - 1)])
    return (entry & _PLACE_MASK) - 1 if entry >> RECENT_BITS == token >> _TOKEN_BITS & 511 else -1
