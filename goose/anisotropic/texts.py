"""The texts of live and past requests as one array of tokens, and the index that finds n-grams in them.

A request's text is one contiguous *segment*. In front of each segment, behind its last committed token and in every
gap stands `NO_TOKEN`, so nothing ever matches across an end. The index is hash heads and links to earlier positions,
both unverified: whoever follows them compares the text, and so nothing has to be taken out of it when a segment is
given up. Knows nothing of who owns which segment (`goose.anisotropic.segments`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import NOT_IN_ROW
from goose.anisotropic.hashing import ngram_hash
from goose.jit import inlined, jit, prefetch

__all__ = [
    "MAX_TOKEN",
    "NO_TOKEN",
    "NUM_SUCCESSORS",
    "OWN_LINKS",
    "POOL_LINKS",
    "ROW_MARKS",
    "TEXT_SCOPE",
    "TEXT_TOKEN",
    "Texts",
    "aligned_zeros",
    "followed_at",
    "index_position",
    "new_texts",
    "packed",
    "prefetch_around",
    "prefetch_row",
    "resized",
    "row_rest_at",
    "set_followed",
    "unpacked_id",
]

NO_TOKEN = -1
# Successors kept of a row: what a harvest gives by default.
NUM_SUCCESSORS = 10
# Larger ones do not fit in a packed successor.
MAX_TOKEN = (1 << 21) - 1


# Columns of `Texts.records`: the token (NO_TOKEN: none); whom it may be shown to, > 0, because requests see pooled text
# of their own scope alone; three links to the earlier position with the same last 1, 2, 4 tokens of the same request;
# two to that with the same last 2, 4 tokens in any output of the scope; of the target's row after the position the
# bucket of what it leaves over (0: no row), and 32 times that of the token that did follow (0: not known).
TEXT_TOKEN, TEXT_SCOPE, OWN_LINKS, POOL_LINKS, ROW_MARKS = 0, 1, 2, 5, 7
_RECORD = 8


class Texts(NamedTuple):
    """Positions are 0 .. capacity - 1; links and heads hold a position + 1, so that fresh zeros mean "none"."""

    # [capacity, 8]: all that a search reads at a position, two positions a cache line
    records: NDArray[np.int32]
    # [3, num_heads], [2, num_heads]: latest position by hash
    own_heads: NDArray[np.int32]
    pool_heads: NDArray[np.int32]
    # [capacity, NUM_SUCCESSORS]: the target's row after this position, most likely first, as `packed`; then zeros
    rows: NDArray[np.int32]

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """[capacity], a view."""
        return self.records[:, TEXT_TOKEN]

    @property
    def scopes(self) -> NDArray[np.int32]:
        """[capacity], a view."""
        return self.records[:, TEXT_SCOPE]


def new_texts(capacity: int) -> Texts:
    """Empty texts of about 100 bytes a position; rows that the system has not touched yet cost nothing."""
    num_heads = 1 << max(8, (capacity - 1).bit_length())
    records = aligned_zeros(capacity, _RECORD, np.dtype(np.int32))
    records[:, TEXT_TOKEN] = NO_TOKEN
    return Texts(
        records=records,
        own_heads=np.zeros((3, num_heads), np.int32),
        pool_heads=np.zeros((2, num_heads), np.int32),
        rows=np.zeros((capacity, NUM_SUCCESSORS), np.int32),
    )


def resized(texts: Texts, capacity: int) -> Texts:
    """The same texts with more positions. The number of heads stays: a longer search finds as much."""
    larger = new_texts(capacity)._replace(own_heads=texts.own_heads, pool_heads=texts.pool_heads)
    larger.records[: len(texts.records)] = texts.records
    larger.rows[: len(texts.rows)] = texts.rows
    return larger


def aligned_zeros(num_rows: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """[num_rows, width] zeros that begin with a cache line of 64 bytes."""
    size, line = num_rows * width, 64 // dtype.itemsize
    room = np.zeros(size + line, dtype)
    first = -room.ctypes.data % 64 // dtype.itemsize
    return room[first : first + size].reshape(num_rows, width)


@jit
def packed(token: int, bucket: int, mean_bucket: int) -> int:
    """A successor in 31 bits: the token, its bucket in a row and that in a running mean. 0: none."""
    return token << 10 | bucket << 5 | mean_bucket


@jit
def unpacked_id(successor: int) -> int:
    return successor >> 10


@inlined
def index_position(texts: Texts, position: int, start: int, owner: int, scope: int, own: bool, pooled: bool) -> None:
    """Makes the n-grams that end at `position` findable, once the token behind it is known.

    `start` is the segment's first position, `owner` the key of its request's own index.
    """
    records = texts.records
    mask = texts.own_heads.shape[1] - 1
    a = int(records[position, TEXT_TOKEN])
    if own:
        slot = ngram_hash(a, -1, -1, -1, owner) & mask
        records[position, OWN_LINKS + 0] = texts.own_heads[0, slot]
        texts.own_heads[0, slot] = position + 1
    if position < start + 1:
        return
    b = int(records[position - 1, TEXT_TOKEN])
    if own:
        slot = ngram_hash(a, b, -1, -1, owner) & mask
        records[position, OWN_LINKS + 1] = texts.own_heads[1, slot]
        texts.own_heads[1, slot] = position + 1
    if pooled:
        slot = ngram_hash(a, b, -1, -1, scope) & mask
        records[position, POOL_LINKS + 0] = texts.pool_heads[0, slot]
        texts.pool_heads[0, slot] = position + 1
    if position < start + 3:
        return
    c, d = int(records[position - 2, TEXT_TOKEN]), int(records[position - 3, TEXT_TOKEN])
    if own:
        slot = ngram_hash(a, b, c, d, owner) & mask
        records[position, OWN_LINKS + 2] = texts.own_heads[2, slot]
        texts.own_heads[2, slot] = position + 1
    if pooled:
        slot = ngram_hash(a, b, c, d, scope) & mask
        records[position, POOL_LINKS + 1] = texts.pool_heads[1, slot]
        texts.pool_heads[1, slot] = position + 1


@jit
def set_followed(texts: Texts, position: int) -> None:
    """Notes how likely the row at `position` found the token behind it, if both are known."""
    following, rest = int(texts.records[position + 1, TEXT_TOKEN]), row_rest_at(texts.records, position)
    if rest == 0 or following == NO_TOKEN:
        return
    bucket = NOT_IN_ROW
    for rank in range(NUM_SUCCESSORS):
        successor = int(texts.rows[position, rank])
        if successor == 0:
            break
        if unpacked_id(successor) == following:
            bucket = successor >> 5 & 31
            break
    texts.records[position, ROW_MARKS] = rest + 32 * bucket


@jit
def prefetch_around(records: NDArray[np.int32], position: int) -> None:
    """Asks for a position with those before and behind it, which lie in two cache lines."""
    if position > 0:
        prefetch(records, position - 1, 0)
        prefetch(records, min(position + 1, records.shape[0] - 1), 0)


@jit
def prefetch_row(rows: NDArray[np.int32], position: int) -> None:
    """A row may begin in one cache line and end in the next."""
    prefetch(rows, position, 0)
    prefetch(rows, position, NUM_SUCCESSORS - 1)


@jit
def row_rest_at(records: NDArray[np.int32], position: int) -> int:
    """Bucket of the probability that the row at a position leaves over; 0: no row."""
    return int(records[position, ROW_MARKS]) & 31


@jit
def followed_at(records: NDArray[np.int32], position: int) -> int:
    """Bucket of the probability that the row at a position gave the token that did follow; 0: not known."""
    return int(records[position, ROW_MARKS]) >> 5
