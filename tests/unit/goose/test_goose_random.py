"""Counter-based draws: the published test vectors, uniformity, and that a draw depends on its key alone."""

import numpy as np
import pytest
from numpy.typing import NDArray

from goose.random import philox4x32, uniform


def words(*values: int) -> tuple[NDArray[np.uint64], ...]:
    return tuple(np.asarray([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Random123, kat_vectors, philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    c0, c1, c2, c3 = words(*counter)
    k0, k1 = words(*key)
    assert tuple(int(word[0]) for word in philox4x32((c0, c1, c2, c3), (k0, k1))) == expected


@pytest.mark.parametrize(
    ("seeds", "positions"),
    [
        (np.int64(1234), np.arange(200_000)),
        (np.arange(200_000), np.int64(0)),
        (np.arange(200_000) << 32, np.arange(200_000)),
    ],
    ids=["along a sequence", "first token of many seeds", "both"],
)
def test_draws_are_uniform(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
    # Chi-square over 100 cells, 99 degrees of freedom: 181.8 is exceeded with probability 1e-6 each.
    draws = uniform(seeds, positions)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts = np.bincount((draws * 100).astype(np.int64), minlength=100)
    expected = len(draws) / 100
    assert ((counts - expected) ** 2 / expected).sum() < 181.8


def test_neighbours_are_independent() -> None:
    # Correlation of 200,000 independent pairs has a standard deviation of 0.0022; five of them: probability 6e-7 each.
    draws = uniform(7, np.arange(200_001))
    for left, right in ((draws[:-1], draws[1:]), (draws, uniform(8, np.arange(200_001)))):
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / np.sqrt(200_000)


def test_a_draw_depends_on_its_seed_and_position_alone() -> None:
    seeds, positions = np.asarray([3, 3, 9]), np.asarray([0, 1, 0])
    together = uniform(seeds, positions)
    assert [float(uniform(s, p)) for s, p in zip(seeds, positions, strict=True)] == together.tolist()
    assert len(set(together.tolist())) == 3


def test_seeds_and_positions_broadcast() -> None:
    grid = uniform(np.arange(2)[:, None], np.arange(3))
    assert grid.shape == (2, 3)
    assert grid[1, 2] == uniform(1, 2)


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
    assert uniform(2**32, 0) != uniform(0, 0)
    assert uniform(0, 2**32) != uniform(0, 0)


def test_fractions_are_no_seeds() -> None:
    with pytest.raises(TypeError, match="64-bit integers"):
        uniform(0.5, 1)
