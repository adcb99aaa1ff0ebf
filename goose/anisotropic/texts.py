"""The texts of live and past requests as one array of tokens, and the index that finds n-grams in them.

A request's text is one contiguous *segment*. In front of each segment, behind its last committed token and in every
gap stands `NO_TOKEN`, so nothing ever matches across an end. The index is hash heads and links to earlier positions,
both unverified: whoever follows them compares the text, and so nothing has to be taken out of it when a segment is
given up. Knows nothing of who owns which segment (`goose.anisotropic.segments`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import NOT_IN_ROW
from goose.anisotropic.hashing import ngram_hash
from goose.jit import jit

__all__ = [
    "MAX_TOKEN",
    "NO_TOKEN",
    "NUM_SUCCESSORS",
    "Texts",
    "index_position",
    "new_texts",
    "packed",
    "resized",
    "set_followed",
    "unpacked_id",
]

NO_TOKEN = -1
# Successors kept of a row: what a harvest gives by default.
NUM_SUCCESSORS = 10
# Larger ones do not fit in a packed successor.
MAX_TOKEN = (1 << 21) - 1


class Texts(NamedTuple):
    """Positions are 0 .. capacity - 1; links and heads hold a position + 1, so that fresh zeros mean "none"."""

    # [capacity]
    token_ids: NDArray[np.int32]
    # [capacity]: whom the text may be shown to, > 0; requests see pooled text of their own scope alone
    scopes: NDArray[np.int32]
    # [capacity, 3]: earlier position with the same last 1, 2, 4 tokens of the same request
    own_links: NDArray[np.int32]
    # [capacity, 2]: earlier position with the same last 2, 4 tokens in any output of the scope
    pool_links: NDArray[np.int32]
    # [3, num_heads], [2, num_heads]: latest position by hash
    own_heads: NDArray[np.int32]
    pool_heads: NDArray[np.int32]
    # [capacity, NUM_SUCCESSORS]: the target's row after this position, most likely first, as `packed`; then zeros
    rows: NDArray[np.int32]
    # [capacity]: bucket of the probability that the row leaves over; 0: no row
    row_rests: NDArray[np.uint8]
    # [capacity]: bucket of the probability that the row gave the token that did follow; 0: not known
    followed: NDArray[np.uint8]


def new_texts(capacity: int) -> Texts:
    """Empty texts of about 100 bytes a position; memory the system has not touched yet costs nothing."""
    num_heads = 1 << max(8, (capacity - 1).bit_length())
    return Texts(
        token_ids=np.full(capacity, NO_TOKEN, np.int32),
        scopes=np.zeros(capacity, np.int32),
        own_links=np.zeros((capacity, 3), np.int32),
        pool_links=np.zeros((capacity, 2), np.int32),
        own_heads=np.zeros((3, num_heads), np.int32),
        pool_heads=np.zeros((2, num_heads), np.int32),
        rows=np.zeros((capacity, NUM_SUCCESSORS), np.int32),
        row_rests=np.zeros(capacity, np.uint8),
        followed=np.zeros(capacity, np.uint8),
    )


def resized(texts: Texts, capacity: int) -> Texts:
    """The same texts with more positions. The number of heads stays: a longer search finds as much."""
    larger = new_texts(capacity)._replace(own_heads=texts.own_heads, pool_heads=texts.pool_heads)
    for name in ("token_ids", "scopes", "own_links", "pool_links", "rows", "row_rests", "followed"):
        getattr(larger, name)[: len(texts.token_ids)] = getattr(texts, name)
    return larger


@jit
def packed(token: int, bucket: int, mean_bucket: int) -> int:
    """A successor in 31 bits: the token, its bucket in a row and that in a running mean. 0: none."""
    return token << 10 | bucket << 5 | mean_bucket


@jit
def unpacked_id(successor: int) -> int:
    return successor >> 10


@jit
def index_position(texts: Texts, position: int, start: int, owner: int, scope: int, own: bool, pooled: bool) -> None:
    """Makes the n-grams that end at `position` findable, once the token behind it is known.

    `start` is the segment's first position, `owner` the key of its request's own index.
    """
    tokens = texts.token_ids
    mask = texts.own_heads.shape[1] - 1
    a = int(tokens[position])
    if own:
        slot = ngram_hash(a, -1, -1, -1, owner) & mask
        texts.own_links[position, 0] = texts.own_heads[0, slot]
        texts.own_heads[0, slot] = position + 1
    if position < start + 1:
        return
    b = int(tokens[position - 1])
    if own:
        slot = ngram_hash(a, b, -1, -1, owner) & mask
        texts.own_links[position, 1] = texts.own_heads[1, slot]
        texts.own_heads[1, slot] = position + 1
    if pooled:
        slot = ngram_hash(a, b, -1, -1, scope) & mask
        texts.pool_links[position, 0] = texts.pool_heads[0, slot]
        texts.pool_heads[0, slot] = position + 1
    if position < start + 3:
        return
    c, d = int(tokens[position - 2]), int(tokens[position - 3])
    if own:
        slot = ngram_hash(a, b, c, d, owner) & mask
        texts.own_links[position, 2] = texts.own_heads[2, slot]
        texts.own_heads[2, slot] = position + 1
    if pooled:
        slot = ngram_hash(a, b, c, d, scope) & mask
        texts.pool_links[position, 1] = texts.pool_heads[1, slot]
        texts.pool_heads[1, slot] = position + 1


@jit
def set_followed(texts: Texts, position: int) -> None:
    """Notes how likely the row at `position` found the token behind it, if both are known."""
    following = int(texts.token_ids[position + 1])
    if texts.row_rests[position] == 0 or following == NO_TOKEN:
        return
    texts.followed[position] = NOT_IN_ROW
    for rank in range(NUM_SUCCESSORS):
        successor = int(texts.rows[position, rank])
        if successor == 0:
            return
        if unpacked_id(successor) == following:
            texts.followed[position] = successor >> 5 & 31
            return
