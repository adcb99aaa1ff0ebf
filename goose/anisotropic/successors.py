"""What the target found likely after a token, a pair and a triple of tokens: the last row seen, and a running mean.

Three direct-mapped tables: a row that hashes to a taken place replaces what is there, so memory is fixed whatever the
vocabulary and the traffic. Rows are kept by scope (`cache_salt`), like the texts. What drafting reads of a row is one
record of 64 bytes, one cache line: a key, and up to 14 successors of row and mean together, each with two probability
buckets. Tokens beyond 2^21 are not kept.

Memory: 64 bytes a record, 64 more for a running mean. Tokens 196,608 rows = 25.2 MB (holds each token of a 152k
vocabulary without a clash), pairs 131,072 rows = 16.8 MB, triples 131,072 rows = 8.4 MB (they need no running mean);
untouched pages cost nothing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import probability_bucket
from goose.anisotropic.hashing import extended, seeded
from goose.anisotropic.texts import MAX_TOKEN, NUM_SUCCESSORS, aligned_zeros, packed, unpacked_id
from goose.anisotropic.usual import Usual, learn_usual, new_usual
from goose.jit import inlined, jit, prefetch

__all__ = [
    "FIRST_ENTRY",
    "MIN_PROBABILITY",
    "NUM_ENTRIES",
    "Successors",
    "is_at",
    "is_filed",
    "learn_row",
    "locate_pair",
    "locate_token",
    "locate_triple",
    "look_ahead",
    "new_successors",
    "row_count",
    "row_rest",
    "row_to_buckets",
]

# Places follow the hash's upper bits, so the numbers of rows are powers of two, but for that of tokens.
NUM_TOKEN_ROWS, NUM_PAIR_ROWS, NUM_TRIPLE_ROWS = 3 << 16, 1 << 17, 1 << 17
# The record: key (31 bits, 0: empty), rest bucket + 32 * rows merged (at most 255), then the successors, as `packed`.
_KEY, _META, FIRST_ENTRY, NUM_ENTRIES, _RECORD = 0, 1, 2, 14, 16
# The newest row's part in a running mean, at least; a table without forgetting would not follow a change of subject.
_TOKEN_RATE, _PAIR_RATE = 0.1, 0.15
# Less likely successors are not worth a place in the mean; what is less likely than the others is no candidate.
MIN_PROBABILITY, _MIN_MEAN, _MIN_BUCKET = 0.004, 0.02, 4


class Successors(NamedTuple):
    """One record a key, and the probabilities of the running mean beside it: entry i belongs to successor i."""

    # [num_rows, 16]
    tokens: NDArray[np.int32]
    pairs: NDArray[np.int32]
    triples: NDArray[np.int32]
    # [num_rows, 16]
    token_means: NDArray[np.float32]
    pair_means: NDArray[np.float32]
    # where there is no record
    usual: Usual


def new_successors() -> Successors:
    ids, probs = np.dtype(np.int32), np.dtype(np.float32)
    return Successors(
        tokens=aligned_zeros(NUM_TOKEN_ROWS, _RECORD, ids),
        pairs=aligned_zeros(NUM_PAIR_ROWS, _RECORD, ids),
        triples=aligned_zeros(NUM_TRIPLE_ROWS, _RECORD, ids),
        token_means=aligned_zeros(NUM_TOKEN_ROWS, _RECORD, probs),
        pair_means=aligned_zeros(NUM_PAIR_ROWS, _RECORD, probs),
        usual=new_usual(),
    )


@jit
def _token_place(token: int, scope: int) -> int:
    # Token rows of the first scope lie in order of the token, so they do not clash with each other.
    return (token + (scope - 1) * 40503) % NUM_TOKEN_ROWS


@jit
def locate_token(a: int, scope: int) -> tuple[int, int]:
    """Row and key of the record of a token; if the row's key is another, there is no such record."""
    return _token_place(a, scope), max(extended(seeded(scope, 0), a, 0), 1)


@jit
def locate_pair(a: int, b: int, scope: int) -> tuple[int, int]:
    """That of token a behind b."""
    place = extended(extended(seeded(scope, 1), a, 1), b, 1)
    key = extended(extended(seeded(scope, 0), a, 0), b, 0)
    return place & (NUM_PAIR_ROWS - 1), max(key, 1)


@jit
def locate_triple(a: int, b: int, c: int, scope: int) -> tuple[int, int]:
    """That of token a behind b behind c."""
    place = extended(extended(extended(seeded(scope, 1), a, 1), b, 1), c, 1)
    key = extended(extended(extended(seeded(scope, 0), a, 0), b, 0), c, 0)
    return place & (NUM_TRIPLE_ROWS - 1), max(key, 1)


@jit
def is_at(records: NDArray[np.int32], row: int, key: int) -> bool:
    return bool(row >= 0 and records[row, _KEY] == key)


@inlined
def look_ahead(successors: Successors, a: int, b: int, scope: int, committed: bool, places: NDArray[np.int64]) -> None:
    """Fills `places` [4] for `is_filed` with rows and keys of the records of token `a`, and of `a` behind `b` (-1:
    none), and asks for what that will read; if `committed`, for what `learn_row` will."""
    places[0], places[1] = locate_token(a, scope)
    prefetch(successors.tokens, places[0], 0)
    if committed:
        prefetch(successors.token_means, places[0], 0)
    places[2] = -1
    if b >= 0:
        places[2], places[3] = locate_pair(a, b, scope)
        prefetch(successors.pairs, places[2], 0)
        if committed:
            prefetch(successors.pair_means, places[2], 0)


@jit
def is_filed(successors: Successors, places: NDArray[np.int64]) -> bool:
    """Whether there are both records."""
    return is_at(successors.tokens, places[0], places[1]) and (
        places[2] < 0 or is_at(successors.pairs, places[2], places[3])
    )


@jit
def row_rest(records: NDArray[np.int32], row: int) -> int:
    """Bucket of the probability that the row leaves over."""
    return int(records[row, _META]) & 31


@jit
def row_count(records: NDArray[np.int32], row: int) -> int:
    """Rows that the mean is made of, at most 255."""
    return int(records[row, _META]) >> 5


@jit
def row_to_buckets(ids: NDArray[np.int64], probs: NDArray[np.float32], buckets: NDArray[np.uint8]) -> int:
    """Fills `buckets` [NUM_SUCCESSORS] with those of a harvested row, 0 behind its end; returns that of the rest."""
    total = 0.0
    ended = False
    for rank in range(NUM_SUCCESSORS):
        probability = float(probs[rank]) if rank < len(probs) else 0.0
        ended = ended or probability < MIN_PROBABILITY or not 0 <= ids[rank] <= MAX_TOKEN
        buckets[rank] = 0 if ended else probability_bucket(probability)
        total += probability
    return probability_bucket(1.0 - total)


@inlined
def learn_row(
    successors: Successors,
    a: int,
    b: int,
    c: int,
    scope: int,
    ids: NDArray[np.int64],
    probs: NDArray[np.float32],
    buckets: NDArray[np.uint8],
    rest: int,
    committed: bool,
    old_ids: NDArray[np.int32],
    old_means: NDArray[np.float64],
) -> None:
    """Files the target's row after token `a` behind `b` behind `c` (-1: none).

    Rows of committed positions feed the running means, the triples and the usual tokens as well. A rejected node's row
    is a guess about text that was not written: it is filed where there is none. `old_ids` and `old_means`
    [NUM_ENTRIES] are scratch.
    """
    tables = successors
    if committed:
        learn_usual(tables.usual, scope, ids, probs, buckets)
    row, key = locate_token(a, scope)
    _file(
        tables.tokens,
        tables.token_means,
        row,
        key,
        ids,
        probs,
        buckets,
        rest,
        _TOKEN_RATE,
        committed,
        old_ids,
        old_means,
    )
    if b < 0:
        return
    row, key = locate_pair(a, b, scope)
    _file(
        tables.pairs, tables.pair_means, row, key, ids, probs, buckets, rest, _PAIR_RATE, committed, old_ids, old_means
    )
    if c >= 0 and committed:
        row, key = locate_triple(a, b, c, scope)
        record = tables.triples[row]
        record[_KEY], record[_META] = key, rest
        _write_row(record, ids, buckets)


@jit
def _write_row(record: NDArray[np.int32], ids: NDArray[np.int64], buckets: NDArray[np.uint8]) -> int:
    """Replaces the successors by those of a row; returns how many it has."""
    count = 0
    while count < NUM_SUCCESSORS and buckets[count] >= _MIN_BUCKET:
        record[FIRST_ENTRY + count] = packed(int(ids[count]), int(buckets[count]), 0)
        count += 1
    for entry in range(count, NUM_ENTRIES):
        record[FIRST_ENTRY + entry] = 0
    return count


@inlined
def _file(
    records: NDArray[np.int32],
    all_means: NDArray[np.float32],
    row: int,
    key: int,
    ids: NDArray[np.int64],
    probs: NDArray[np.float32],
    buckets: NDArray[np.uint8],
    rest: int,
    min_rate: float,
    merge: bool,
    old_ids: NDArray[np.int32],
    old_means: NDArray[np.float64],
) -> None:
    """A mean follows mean <- (1 - rate) mean + rate row; rate = 1/(n + 1), at least `min_rate`.

    The row's successors come first, then those that the mean alone has, as far as there is room.
    """
    record, means = records[row], all_means[row]
    known = record[_KEY] == key
    if known and not merge:
        return
    count = int(record[_META]) >> 5 if known else 0
    rate = max(1.0 / (count + 1), min_rate) if merge else 0.0
    # What the mean has, decayed, is taken out before the row is written over it.
    num_old = 0
    if known:
        for entry in range(NUM_ENTRIES):
            if means[entry] > 0.0:
                old_ids[num_old] = unpacked_id(int(record[FIRST_ENTRY + entry]))
                old_means[num_old] = float(means[entry]) * (1.0 - rate)
                num_old += 1
    record[_KEY], record[_META] = key, rest + 32 * min(255, count + (1 if merge else 0))
    size = 0
    for rank in range(NUM_SUCCESSORS):
        if buckets[rank] == 0:
            break
        mean = rate * float(probs[rank])
        for entry in range(num_old):
            if old_ids[entry] == ids[rank]:
                mean += old_means[entry]
                old_means[entry] = 0.0
                break
        _write(record, means, size, int(ids[rank]), int(buckets[rank]), mean)
        size += 1
    for entry in range(num_old):
        mean = old_means[entry]
        if mean <= 0.0:
            continue
        if size < NUM_ENTRIES:
            _write(record, means, size, int(old_ids[entry]), 0, mean)
            size += 1
            continue
        # Full: the least of those that the row does not have gives way.
        least = NUM_ENTRIES - 1
        for other in range(NUM_ENTRIES - 1, 0, -1):
            if (int(record[FIRST_ENTRY + other]) >> 5) & 31 != 0:
                break
            if means[other] < means[least]:
                least = other
        if mean > float(means[least]):
            _write(record, means, least, int(old_ids[entry]), 0, mean)
    for entry in range(size, NUM_ENTRIES):
        record[FIRST_ENTRY + entry] = 0
        means[entry] = 0.0


@jit
def _write(
    record: NDArray[np.int32], means: NDArray[np.float32], entry: int, token: int, bucket: int, mean: float
) -> None:
    mean_bucket = probability_bucket(mean) if mean >= _MIN_MEAN else 0
    record[FIRST_ENTRY + entry] = packed(token, bucket if bucket >= _MIN_BUCKET else 0, mean_bucket)
    means[entry] = mean
