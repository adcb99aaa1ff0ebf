"""What the target found likely after a token, a pair and a triple of tokens: the last row seen, and a running mean.

Three tables of the same shape, direct-mapped: a row that hashes to a taken place replaces what is there, so memory is
fixed whatever the vocabulary and the traffic. Rows are kept by scope (`cache_salt`), like the texts. A row's
probabilities are kept as bucket numbers, which is all that the model reads of them.

Memory: 124 bytes a row. Tokens 196,608 rows = 24.4 MB (holds each token of a 152k vocabulary without a clash), pairs
131,072 rows = 16.3 MB, triples 131,072 rows = 7.6 MB (they need no running mean); untouched pages cost nothing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import probability_bucket
from goose.anisotropic.hashing import fingerprint
from goose.anisotropic.texts import NUM_SUCCESSORS
from goose.jit import jit

__all__ = ["NUM_MERGED", "SuccessorTable", "Successors", "find_row", "learn_row", "new_successors", "row_to_buckets"]

NUM_TOKEN_ROWS, NUM_PAIR_ROWS, NUM_TRIPLE_ROWS = 3 << 16, 1 << 17, 1 << 17
# Successors in a running mean.
NUM_MERGED = 8
# The newest row's part in a running mean, at least; a table without forgetting would not follow a change of subject.
_TOKEN_RATE, _PAIR_RATE = 0.1, 0.15
# Less likely successors are not worth a place.
_MIN_PROBABILITY = 0.004


class SuccessorTable(NamedTuple):
    """One row a key."""

    # [num_rows]: fingerprint of tokens and scope; 0: empty
    keys: NDArray[np.int64]
    # [num_rows, NUM_SUCCESSORS], most likely first
    ids: NDArray[np.int32]
    # [num_rows, NUM_SUCCESSORS]: probability buckets; 0 from the end of the row on
    buckets: NDArray[np.uint8]
    # [num_rows]: bucket of the probability that the row leaves over
    rests: NDArray[np.uint8]
    # [num_rows, NUM_MERGED]: the running mean, in no order; probability 0: no entry
    merged_ids: NDArray[np.int32]
    merged_probs: NDArray[np.float32]
    # [num_rows]: rows merged, at most 255
    counts: NDArray[np.uint8]


class Successors(NamedTuple):
    """The three tiers."""

    tokens: SuccessorTable
    pairs: SuccessorTable
    triples: SuccessorTable


def new_successors() -> Successors:
    return Successors(
        tokens=_new_table(NUM_TOKEN_ROWS, NUM_TOKEN_ROWS),
        pairs=_new_table(NUM_PAIR_ROWS, NUM_PAIR_ROWS),
        triples=_new_table(NUM_TRIPLE_ROWS, 1),
    )


def _new_table(num_rows: int, num_merged_rows: int) -> SuccessorTable:
    return SuccessorTable(
        keys=np.zeros(num_rows, np.int64),
        ids=np.zeros((num_rows, NUM_SUCCESSORS), np.int32),
        buckets=np.zeros((num_rows, NUM_SUCCESSORS), np.uint8),
        rests=np.zeros(num_rows, np.uint8),
        merged_ids=np.zeros((num_merged_rows, NUM_MERGED), np.int32),
        merged_probs=np.zeros((num_merged_rows, NUM_MERGED), np.float32),
        counts=np.zeros(num_merged_rows, np.uint8),
    )


@jit
def _place(keys: NDArray[np.int64], key: int, a: int, b: int, scope: int) -> int:
    # Token rows of the first scope lie in order of the token, so they do not clash with each other.
    if b < 0:
        return (a + (scope - 1) * 40503) % len(keys)
    return key % len(keys)


@jit
def find_row(keys: NDArray[np.int64], a: int, b: int, c: int, scope: int) -> int:
    """The row of up to three tokens, latest first, -1 where there are fewer; -1 if the table has none."""
    key = fingerprint(a, b, c, scope)
    place = _place(keys, key, a, b, scope)
    return place if keys[place] == key else -1


@jit
def row_to_buckets(ids: NDArray[np.int32], probs: NDArray[np.float32], buckets: NDArray[np.uint8]) -> int:
    """Fills `buckets` [NUM_SUCCESSORS] with those of a harvested row, 0 behind its end; returns that of the rest."""
    total = 0.0
    ended = False
    for rank in range(NUM_SUCCESSORS):
        probability = float(probs[rank]) if rank < len(probs) else 0.0
        ended = ended or probability < _MIN_PROBABILITY or ids[rank] < 0
        buckets[rank] = 0 if ended else probability_bucket(probability)
        total += probability
    return probability_bucket(1.0 - total)


@jit
def learn_row(
    successors: Successors,
    a: int,
    b: int,
    c: int,
    scope: int,
    ids: NDArray[np.int32],
    probs: NDArray[np.float32],
    buckets: NDArray[np.uint8],
    rest: int,
    committed: bool,
) -> None:
    """Files the target's row after token `a` behind `b` behind `c` (-1: none).

    Rows of committed positions feed the running means and the triples as well; a rejected node's row is a guess about
    text that was not written, and only replaces the last row.
    """
    _file(successors.tokens, a, -1, -1, scope, ids, probs, buckets, rest, _TOKEN_RATE, committed)
    if b >= 0:
        _file(successors.pairs, a, b, -1, scope, ids, probs, buckets, rest, _PAIR_RATE, committed)
        if c >= 0 and committed:
            _file(successors.triples, a, b, c, scope, ids, probs, buckets, rest, _PAIR_RATE, False)


@jit
def _file(
    table: SuccessorTable,
    a: int,
    b: int,
    c: int,
    scope: int,
    ids: NDArray[np.int32],
    probs: NDArray[np.float32],
    buckets: NDArray[np.uint8],
    rest: int,
    min_rate: float,
    merge: bool,
) -> None:
    key = fingerprint(a, b, c, scope)
    row = _place(table.keys, key, a, b, scope)
    if table.keys[row] != key:
        table.keys[row] = key
        if len(table.counts) == len(table.keys):
            table.counts[row] = 0
            for entry in range(NUM_MERGED):
                table.merged_probs[row, entry] = 0.0
    for rank in range(NUM_SUCCESSORS):
        if rank < len(ids):
            table.ids[row, rank] = ids[rank]
        table.buckets[row, rank] = buckets[rank]
    table.rests[row] = rest
    if merge:
        _merge(table, row, ids, probs, buckets, min_rate)


@jit
def _merge(
    table: SuccessorTable,
    row: int,
    ids: NDArray[np.int32],
    probs: NDArray[np.float32],
    buckets: NDArray[np.uint8],
    min_rate: float,
) -> None:
    """mean <- (1 - rate) mean + rate row; rate = 1/(n + 1), at least `min_rate`. A full mean drops its least entry."""
    count = int(table.counts[row])
    rate = max(1.0 / (count + 1), min_rate)
    merged_ids, merged_probs = table.merged_ids[row], table.merged_probs[row]
    for entry in range(NUM_MERGED):
        merged_probs[entry] = float(merged_probs[entry]) * (1.0 - rate)
    for rank in range(min(NUM_SUCCESSORS, len(ids))):
        if buckets[rank] == 0:
            break
        least, found = 0, -1
        for entry in range(NUM_MERGED):
            if merged_probs[entry] > 0.0 and merged_ids[entry] == ids[rank]:
                found = entry
                break
            if merged_probs[entry] < merged_probs[least]:
                least = entry
        added = rate * float(probs[rank])
        if found >= 0:
            merged_probs[found] = float(merged_probs[found]) + added
        elif added > float(merged_probs[least]):
            merged_ids[least] = ids[rank]
            merged_probs[least] = added
    table.counts[row] = min(255, count + 1)
