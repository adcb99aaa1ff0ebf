"""Offsets and temperature from counts: found where probabilities are wrong, left alone where they are not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from goose.tree import TokenTree
from goose.tuning import TreeTuning, solve
from goose.tuning_counts import ACCEPTED, ATTEMPTED, TuningCounts

BITS = (1, 2, 4)
NONE = TuningCounts.none()


def chain(probs: list[float], sources: list[int]) -> TokenTree:
    tree = TokenTree.from_parents([0, *range(1, len(probs) + 1)], [-1, *range(len(probs))])
    return replace(
        tree,
        probs=np.array([1.0, *probs], np.float32),
        sources=np.array([0, *sources], np.int64),
    )


def counted(
    num_trees: int, truth: Callable[[float, int], float], *, offsets: tuple[float, ...] = (0.0, 0.0, 0.0), seed: int = 0
) -> TuningCounts:
    """Trees of one node that the untuned model gives many odds, shifted by the offsets in force; `truth` of its logit
    before them and its group is what the target's logit is."""
    rng = np.random.default_rng(seed)
    trees, accepted = [], []
    for _ in range(num_trees):
        group, z = int(rng.integers(3)), float(rng.normal(0, 1.5))
        p, right = (1 / (1 + np.exp(-logit)) for logit in (z + offsets[group], truth(z, group)))
        trees.append(chain([p], [BITS[group]]))
        accepted.append(np.array([1] if rng.random() < right else [], np.int64))
    return TuningCounts.of(
        trees, accepted, bits=BITS, offsets=np.tile(offsets, (num_trees, 1)), temperatures=np.ones(num_trees)
    )


def test_right_probabilities_ask_for_nothing() -> None:
    tuning = solve([counted(6000, lambda z, group: z)])
    assert np.abs(tuning.offsets).max() < 0.15
    assert abs(tuning.temperature - 1) < 0.1


def test_a_group_that_is_accepted_more_than_thought_is_raised_and_one_that_is_less_lowered() -> None:
    tuning = solve([counted(6000, lambda z, group: z + (0.8, 0.0, -0.8)[group])])
    assert tuning.offsets[0] > 0.5
    assert abs(tuning.offsets[1]) < 0.2
    assert tuning.offsets[2] < -0.5


def test_overconfident_probabilities_lower_the_temperature() -> None:
    assert solve([counted(6000, lambda z, group: 0.6 * z)]).temperature < 0.8


def test_what_was_in_force_when_it_was_counted_does_not_matter() -> None:
    def truth(z: float, group: int) -> float:
        return z + 0.5

    plain = solve([counted(8000, truth)])
    tuned = solve([counted(8000, truth, offsets=(0.5, 0.5, 0.5), seed=1)])
    assert np.abs(np.subtract(plain.offsets, tuned.offsets)).max() < 0.15


def test_few_counts_change_little() -> None:
    def truth(z: float, group: int) -> float:
        return z + 2

    assert np.abs(solve([counted(10, truth)]).offsets).max() < 0.2
    assert solve([counted(6000, truth)]).offsets[0] > 1


def test_a_level_without_counts_is_what_the_level_before_it_is() -> None:
    cluster = counted(6000, lambda z, group: z + 0.8)
    alone, below = solve([cluster]), solve([cluster, NONE, NONE])
    assert below.offsets == alone.offsets
    own = counted(6000, lambda z, group: z - 0.8, seed=1)
    assert solve([cluster, NONE, own]).offsets[0] < 0 < alone.offsets[0]


def test_only_reached_nodes_count() -> None:
    tree = chain([0.5, 0.5, 0.5], [1, 4, 4])
    counts = TuningCounts.of(
        [tree, tree],
        [np.array([1]), np.array([], np.int64)],
        bits=BITS,
        offsets=np.zeros((2, 3)),
        temperatures=np.ones(2),
    )
    # the first node of both, and of the accepted one its child
    assert counts.sums[..., ATTEMPTED].sum(axis=1).tolist() == [2, 0, 1]
    assert counts.sums[..., ACCEPTED].sum(axis=1).tolist() == [1, 0, 0]
    assert counts.num_trees == 2


def test_nodes_of_no_source_do_not_count() -> None:
    counts = TuningCounts.of(
        [chain([1.0, 0.5], [0, 4])],
        [np.array([1, 2])],
        bits=BITS,
        offsets=np.zeros((1, 3)),
        temperatures=np.ones(1),
    )
    assert counts.attempted == 1


@pytest.mark.parametrize("wrong", [{"offsets": (0.0,)}, {"offsets": (0.0, float("nan"), 0.0)}, {"temperature": 0.0}])
def test_a_tuning_that_no_tree_could_be_built_with_is_refused(wrong: dict[str, tuple[float, ...] | float]) -> None:
    with pytest.raises(ValueError, match="a tuning needs"):
        TreeTuning(**wrong)  # type: ignore[arg-type]
