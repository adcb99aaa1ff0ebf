"""The usual tokens of a scope: a weighted mean of rows, sorted, each scope for itself."""

import numpy as np
import pytest
from numpy.typing import NDArray

from goose.anisotropic.features import probability_bucket
from goose.anisotropic.successors import row_to_buckets
from goose.anisotropic.texts import NUM_SUCCESSORS, unpacked_id
from goose.anisotropic.usual import NUM_USUAL, Usual, find_usual, learn_usual, new_usual


def learn(usual: Usual, scope: int, row: dict[int, float]) -> None:
    ids = np.full(NUM_SUCCESSORS, -1, dtype=np.int64)
    probs = np.zeros(NUM_SUCCESSORS, dtype=np.float32)
    ids[: len(row)], probs[: len(row)] = list(row), list(row.values())
    buckets: NDArray[np.uint8] = np.zeros(NUM_SUCCESSORS, dtype=np.uint8)
    row_to_buckets(ids, probs, buckets)
    learn_usual(usual, scope, ids, probs, buckets)


def listed(usual: Usual, scope: int) -> list[tuple[int, int]]:
    """(token, bucket), in order."""
    place = find_usual(usual.scopes, scope)
    return [(unpacked_id(entry), entry >> 5 & 31) for entry in usual.successors[place].tolist() if entry]


def test_a_row_is_its_own_mean() -> None:
    usual = new_usual()
    learn(usual, 1, {7: 0.5, 8: 0.3, 9: 0.001})
    assert listed(usual, 1) == [(7, probability_bucket(0.5)), (8, probability_bucket(0.3))]


def test_the_mean_of_many_rows_is_found_in_order() -> None:
    usual, rng = new_usual(), np.random.default_rng(5)
    # Longer than the weight may grow, so that it is scaled back on the way.
    for _ in range(9000):
        learn(usual, 1, {int(token): 0.4 for token in rng.permutation(12)[:2]} | {100: 0.1})
    shares = dict(listed(usual, 1))
    assert set(shares) == {*range(12), 100}
    assert shares[100] == probability_bucket(0.1)
    assert all(shares[token] in (4, 5, 6) for token in range(12)), "each 2/12 of the time 0.4"
    assert usual.sums[find_usual(usual.scopes, 1)].max() < 1e15


def test_what_is_newly_common_displaces_the_old() -> None:
    usual = new_usual()
    for _ in range(300):
        for token in range(0, 60, 2):
            learn(usual, 1, {token: 0.5, token + 1: 0.4})
    assert len(listed(usual, 1)) == NUM_USUAL
    for _ in range(2000):
        learn(usual, 1, {500: 0.9})
    assert listed(usual, 1)[0][0] == 500


def test_scopes_do_not_see_each_other_and_a_clash_starts_anew() -> None:
    usual = new_usual()
    learn(usual, 1, {7: 0.9})
    learn(usual, 2, {8: 0.9})
    assert [token for token, _ in listed(usual, 1)] == [7]
    assert [token for token, _ in listed(usual, 2)] == [8]
    assert find_usual(usual.scopes, 3) == -1
    learn(usual, 1 + len(usual.scopes), {9: 0.9})
    assert find_usual(usual.scopes, 1) == -1, "its place was taken"
    assert [token for token, _ in listed(usual, 1 + len(usual.scopes))] == [9]
    learn(usual, 1, {3: 0.9})
    assert [token for token, _ in listed(usual, 1)] == [3]


@pytest.mark.parametrize("num_tokens", [1, 31, 32, 33, 200])
def test_masses_stay_sorted(num_tokens: int) -> None:
    usual, rng = new_usual(), np.random.default_rng(num_tokens)
    for _ in range(500):
        chosen = rng.permutation(num_tokens)[:NUM_SUCCESSORS]
        learn(usual, 4, {int(token): float(p) for token, p in zip(chosen, -np.sort(-rng.random(10)) / 6, strict=False)})
        masses = usual.masses[find_usual(usual.scopes, 4)]
        assert (np.diff(masses) <= 0).all()
        ids = usual.ids[find_usual(usual.scopes, 4)][masses > 0]
        assert len(set(ids.tolist())) == len(ids)
