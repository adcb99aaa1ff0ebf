"""Which tokens are likely whatever stands before: the mean of all rows that the target gave, for each scope.

It is asked at nodes whose token has no row yet, which is where drafts of new text would otherwise end. Newer rows count
for more: 250 rows later a row counts for about a third. Scopes share places; a later one takes the place of an earlier.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import probability_bucket
from goose.anisotropic.texts import NUM_SUCCESSORS, packed
from goose.jit import jit

__all__ = ["NUM_USUAL", "Usual", "find_usual", "learn_usual", "new_usual"]

# Tokens that are offered; more are kept, so that one that becomes common is known before it is offered.
NUM_USUAL, _NUM_KEPT = 16, 32
_NUM_SCOPES = 64
# From row to row the weight of a row grows, in place of all earlier ones falling.
_GROWTH, _MAX_WEIGHT = 1.004, 1e12
# Successors of a row in lower buckets (below 0.01) are not looked for.
_MIN_BUCKET = 4
# Columns of `sums`: of the weights of all rows, and the weight of the next.
_TOTAL, _WEIGHT = range(2)


class Usual(NamedTuple):
    """One list a scope, in order of their likelihood."""

    # [num_scopes]: whose list it is; 0: nobody's
    scopes: NDArray[np.int32]
    # [num_scopes, NUM_USUAL]: token and bucket as `packed`; 0: no more
    successors: NDArray[np.int32]
    # [num_scopes, 32]: tokens, and their probabilities in all rows, weighted and summed; mass 0: no more
    ids: NDArray[np.int32]
    masses: NDArray[np.float64]
    # [num_scopes, 2]
    sums: NDArray[np.float64]


def new_usual() -> Usual:
    return Usual(
        scopes=np.zeros(_NUM_SCOPES, np.int32),
        successors=np.zeros((_NUM_SCOPES, NUM_USUAL), np.int32),
        ids=np.zeros((_NUM_SCOPES, _NUM_KEPT), np.int32),
        masses=np.zeros((_NUM_SCOPES, _NUM_KEPT)),
        sums=np.zeros((_NUM_SCOPES, 2)),
    )


@jit
def find_usual(scopes: NDArray[np.int32], scope: int) -> int:
    """The row of the scope's list, -1 if it has none."""
    place = scope & (_NUM_SCOPES - 1)
    return place if scopes[place] == scope else -1


@jit
def learn_usual(
    usual: Usual, scope: int, ids: NDArray[np.int64], probs: NDArray[np.float32], buckets: NDArray[np.uint8]
) -> None:
    """Adds a row, `buckets` as `row_to_buckets` fills them."""
    place = scope & (_NUM_SCOPES - 1)
    masses, sums = usual.masses[place], usual.sums[place]
    if usual.scopes[place] != scope:
        usual.scopes[place] = scope
        sums[_TOTAL], sums[_WEIGHT] = 0.0, 1.0
        for entry in range(_NUM_KEPT):
            masses[entry] = 0.0
    weight = float(sums[_WEIGHT])
    if weight > _MAX_WEIGHT:
        for entry in range(_NUM_KEPT):
            masses[entry] /= weight
        sums[_TOTAL] /= weight
        weight = 1.0
    sums[_TOTAL] += weight
    sums[_WEIGHT] = weight * _GROWTH
    for rank in range(NUM_SUCCESSORS):
        if buckets[rank] < _MIN_BUCKET:
            break
        _add(masses, usual.ids[place], int(ids[rank]), weight * float(probs[rank]))
    for entry in range(NUM_USUAL):
        bucket = probability_bucket(float(masses[entry]) / float(sums[_TOTAL])) if masses[entry] > 0.0 else 0
        usual.successors[place, entry] = packed(int(usual.ids[place, entry]), bucket, 0) if bucket > 0 else 0


@jit
def _add(masses: NDArray[np.float64], ids: NDArray[np.int32], token: int, mass: float) -> None:
    """Adds to the token's mass, or puts it in the place of the least of a full list; keeps the order."""
    entry = 0
    while entry < _NUM_KEPT and masses[entry] > 0.0 and ids[entry] != token:
        entry += 1
    if entry == _NUM_KEPT:
        entry -= 1
        if masses[entry] >= mass:
            return
    else:
        mass += float(masses[entry])
    while entry > 0 and masses[entry - 1] < mass:
        masses[entry], ids[entry] = masses[entry - 1], ids[entry - 1]
        entry -= 1
    masses[entry], ids[entry] = mass, token
