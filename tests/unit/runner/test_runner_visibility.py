"""Masks, written out."""

import numpy as np
import pytest

from goose_ray.runner.visibility import additive_mask, row_visibility


def _drawn(mask: np.ndarray) -> list[str]:
    return ["".join("1" if seen else "0" for seen in row) for row in mask]


def test_a_chain_is_causal() -> None:
    assert _drawn(row_visibility(np.array([-1, 0, 1]), 3)) == ["100", "110", "111"]


def test_a_tree_below_a_chain_sees_ancestors_only() -> None:
    #  0 - 1 - 2 - 4
    #       \- 3 - 5
    parents = np.array([-1, 0, 1, 1, 2, 3])
    assert _drawn(row_visibility(parents, 2)) == ["100000", "110000", "111000", "110100", "111010", "110101"]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (None, ["11110000", "11110010", "11110011"]),
        (3, ["01110000", "00110010", "00010011"]),
        (1, ["00010000", "00000010", "00000001"]),
    ],
)
def test_columns_of_others_are_hidden_and_a_window_moves_with_the_row(window: int | None, expected: list[str]) -> None:
    # Context positions 2, 3, 4 in columns 0, 1, 2; rows at positions 5, 6, 7 in columns 3, 6, 7; 4 and 5 are others'.
    mask = additive_mask(
        row_visibility(np.array([-1, 0, 1]), 3),
        np.array([5, 6, 7]),
        context_columns=np.array([0, 1, 2]),
        context_start=2,
        own_columns=np.array([3, 6, 7]),
        num_columns=8,
        window=window,
    )
    assert mask.dtype == np.float32
    assert set(np.unique(mask)) == {-np.inf, 0.0}
    assert _drawn(mask == 0) == expected
