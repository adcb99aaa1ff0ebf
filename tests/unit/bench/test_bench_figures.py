"""Figures of a study in cases known by hand: bootstrap intervals, the budget that meets wanted nodes, reliability."""

from collections.abc import Callable

import numpy as np
import pytest

from goose.replay import ReplayResult
from goose_ray.bench.replay.bootstrap import Draws, Interval, macro_tau_of, ratio_of, tau_of
from goose_ray.bench.replay.node_matching import match_budget
from goose_ray.bench.replay.reliability import reliability


def result(committed: int, steps: int) -> ReplayResult:
    return ReplayResult(committed=committed, steps=steps, nodes=4 * steps, by_source={})


def test_tau_is_of_all_tokens_and_macro_tau_the_mean_of_benchmarks() -> None:
    results = {"a": [result(10, 5), result(20, 5)], "b": [result(100, 20)]}
    draws = Draws({"a": 2, "b": 1}, seed=0)
    assert tau_of(results["a"]) == 3.0
    macro = macro_tau_of(results, draws)
    assert macro.value == 4.0
    # Replies of tau 2 and 4 give draws of 2, 3 and 4, each beside 5.
    assert (macro.low, macro.high) == (3.5, 4.5)


def test_alike_replies_have_no_spread() -> None:
    draws = Draws({"a": 8}, seed=0)
    assert macro_tau_of({"a": [result(12, 4)] * 8}, draws) == Interval(3.0, 3.0, 3.0)


def test_an_interval_holds_its_share_of_fresh_samples() -> None:
    """400 samples of 40 replies: 95 % intervals miss the true tau in 20 of them; below 6 or above 44 once in 10^6.

    The bootstrap's own intervals are a little narrow, hence 95 % of 400 less a margin to one side only.
    """
    rng = np.random.default_rng(5)
    missed = 0
    for seed in range(400):
        steps = rng.integers(20, 30, 40)
        replies = [result(int(3 * n + rng.normal(0, 10)), int(n)) for n in steps]
        interval = macro_tau_of({"a": replies}, Draws({"a": 40}, seed=seed, num_draws=400))
        missed += not interval.low <= 3.0 <= interval.high
    assert 6 <= missed <= 60


def test_ratios_are_of_paired_replies() -> None:
    """Replies differ widely and the ratio not at all: taken apart, the intervals overlap; paired, it is certain."""
    ours = {"a": [result(2 * tokens, 10) for tokens in (10, 20, 40, 80, 160)]}
    theirs = {"a": [result(tokens, 10) for tokens in (10, 20, 40, 80, 160)]}
    draws = Draws({"a": 5}, seed=0)
    assert macro_tau_of(ours, draws).low < macro_tau_of(theirs, draws).high
    assert ratio_of(ours, theirs, draws) == Interval(2.0, 2.0, 2.0)


def test_draws_are_those_of_the_seed() -> None:
    replies = {"a": [result(tokens, 10) for tokens in range(10, 90, 7)]}
    one, same, other = (macro_tau_of(replies, Draws({"a": 12}, seed=seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("nodes_at", "wanted", "budget"),
    [
        (lambda budget: budget, 60, 60),
        (lambda budget: 0.9 * budget, 18, 20),
        (lambda budget: budget + 20 - 0.2 * budget, 60, 50),
        (lambda budget: 1 + budget**0.5, 9, 64),
        (lambda budget: 10 * (budget // 10), 40, 40),
    ],
)
def test_the_budget_is_found_that_meets_the_wanted_nodes(
    nodes_at: Callable[[int], float], wanted: float, budget: int
) -> None:
    match = match_budget(nodes_at, wanted)
    assert match.budget == budget
    assert match.nodes == nodes_at(budget) == pytest.approx(wanted, rel=0.005)
    assert match.reached
    assert len(match.tried) <= 14


def test_a_straight_line_takes_three_runs() -> None:
    match = match_budget(lambda budget: 0.5 * budget + 3, 60)
    assert (match.budget, list(match.tried)) == (114, [60, 120, 114])


def test_between_two_budgets_the_nearer_is_taken() -> None:
    match = match_budget(lambda budget: 7.0 * budget, 60)
    assert (match.budget, match.nodes, match.reached) == (9, 63.0, True)


def test_a_policy_without_candidates_is_taken_at_its_most() -> None:
    match = match_budget(lambda budget: min(float(budget), 3.4), 60)
    assert (match.nodes, match.reached) == (3.4, False)
    assert set(match.tried) == {60, 120}, "no more is spent at twice the budget, so no more is asked for"


def test_a_policy_that_cannot_spend_less_is_taken_at_its_least() -> None:
    match = match_budget(lambda budget: 18.0 + budget, 16)
    assert (match.budget, match.nodes, match.reached) == (1, 19.0, False)


def test_the_error_of_a_known_case() -> None:
    # 4 nodes said to be 0.1, none accepted; 4 said to be 0.9, two accepted: (4 * 0.1 + 4 * 0.4) / 8.
    probs = np.array([0.1] * 4 + [0.9] * 4)
    accepted = np.array([False] * 6 + [True] * 2)
    found = reliability(probs, accepted, num_bins=2)
    assert found.ece == pytest.approx(0.25)
    assert found.ece_equal_counts == pytest.approx(0.25)
    assert [(one.num_nodes, one.observed) for one in found.bins] == [(4, 0.0), (4, 0.5)]
    assert [one.predicted for one in found.bins] == pytest.approx([0.1, 0.9])


def test_errors_of_either_sign_do_not_cancel_across_bins() -> None:
    found = reliability(np.array([0.25, 0.75]), np.array([True, False]), num_bins=2)
    assert found.ece == pytest.approx(0.75)
    assert reliability(np.array([0.25, 0.75]), np.array([True, False]), num_bins=1).ece == 0.0


def test_outcomes_of_the_predicted_probability_are_reliable() -> None:
    """20,000 nodes: the error of chance is 0.0056 on average in 20 bins; 0.02 is never seen (chance below 1e-9)."""
    rng = np.random.default_rng(0)
    probs = rng.random(20_000)
    honest = reliability(probs, rng.random(20_000) < probs)
    assert honest.ece < 0.02
    assert honest.ece_equal_counts < 0.02
    boastful = reliability(probs, rng.random(20_000) < 0.8 * probs)
    assert boastful.ece == pytest.approx(0.1, abs=0.02)


def test_a_probability_of_one_falls_into_the_last_bin_and_edges_into_the_upper() -> None:
    found = reliability(np.array([0.0, 0.5, 1.0]), np.array([False, True, True]), num_bins=4)
    assert [(one.low, one.high) for one in found.bins] == [(0.0, 0.25), (0.5, 0.75), (0.75, 1.0)]


@pytest.mark.parametrize("probs", [[], [1.2], [float("nan")]])
def test_what_is_no_probability_is_refused(probs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no reached|must lie in"):
        reliability(np.array(probs), np.zeros(len(probs), dtype=np.bool_))
