"""Beta distributions of known quantiles, the levels of a posterior by hand, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from goose.beta import Beta
from goose.calibration import DEPTH_EDGES, RANK_EDGES, AcceptanceTable
from goose.errors import InvalidSnapshotError
from goose.forgetting import RecentAcceptance
from goose.posterior import AcceptancePosterior
from goose.tree import TokenTree


@pytest.mark.parametrize("share", [0.0, 0.025, 0.3, 0.5, 0.975, 1.0])
@pytest.mark.parametrize("shape", [1.0, 0.5, 7.0, 400.0])
def test_quantiles_of_powers(share: float, shape: float) -> None:
    """Beta(a, 1) has the distribution p^a, Beta(1, b) 1 - (1 - p)^b."""
    assert Beta(shape, 1.0).quantile(share) == pytest.approx(share ** (1 / shape), abs=1e-9)
    assert Beta(1.0, shape).quantile(share) == pytest.approx(1 - (1 - share) ** (1 / shape), abs=1e-9)


def test_quantiles_of_the_arcsine_distribution() -> None:
    for share in (0.1, 0.25, 0.5, 0.9):
        assert Beta(0.5, 0.5).quantile(share) == pytest.approx(math.sin(math.pi * share / 2) ** 2, abs=1e-9)


def test_a_binomial_tail_is_a_beta_tail() -> None:
    """P(at least k of n) = I_p(k, n - k + 1)."""
    n, k, p = 12, 4, 0.37
    tail = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
    assert Beta(k, n - k + 1).cdf(p) == pytest.approx(tail, abs=1e-12)


def test_many_trials_are_as_good_as_normal() -> None:
    """Of 10^6 trials the interval is the normal one within a thousandth of its width."""
    low, high = Beta.of_trials(300_000, 1_000_000).interval(0.95)
    half = 1.959964 * math.sqrt(0.3 * 0.7 / 1_000_000)
    assert low == pytest.approx(0.3 - half, abs=half / 500)
    assert high == pytest.approx(0.3 + half, abs=half / 500)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_what_is_no_beta_is_refused(alpha: float, beta: float) -> None:
    with pytest.raises(ValueError, match="alpha and beta must be above 0"):
        Beta(alpha, beta)


@pytest.mark.parametrize(("succeeded", "tried"), [(2, 1), (-1, 1), (math.nan, 1)])
def test_trials_that_cannot_be_are_refused(succeeded: float, tried: float) -> None:
    with pytest.raises(ValueError, match="cannot have succeeded"):
        Beta(1, 1).updated(succeeded, tried)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_shares_lie_between_zero_and_one(share: float) -> None:
    with pytest.raises(ValueError, match=r"share must lie in 0\.\.1"):
        Beta(1, 1).quantile(share)


def table(**counts: tuple[int, int]) -> AcceptanceTable:
    """`depth_rank=(attempted, accepted)` of the source context: `d1_r0=(9, 3)` by bucket numbers."""
    array = np.zeros((2, len(DEPTH_EDGES), len(RANK_EDGES)), np.int64)
    for place, pair in counts.items():
        depth, rank = (int(part[1:]) for part in place.split("_"))
        array[:, depth, rank] = pair
    return AcceptanceTable.from_snapshot({**AcceptanceTable().snapshot(), "sources": {"context": array.tolist()}})


def test_levels_lean_on_those_above() -> None:
    cluster = table(d0_r0=(30, 20), d0_r1=(10, 0), d1_r0=(59, 59))
    posterior = AcceptancePosterior(AcceptanceTable(), cluster=cluster)
    source = 79.5 / 100
    depth = (10 * source + 20) / (10 + 40)
    assert posterior.prior("context", 1, 0).mean == pytest.approx((10 * depth + 20) / (10 + 30))
    assert posterior.prior("context", 1, 1).mean == pytest.approx((10 * depth + 0) / (10 + 10))
    assert posterior.prior("context", 1, 2).mean == pytest.approx(depth), "nobody tried rank 2"
    assert posterior.prior("context", 40, 0).mean == pytest.approx(source), "nobody was that deep"
    assert posterior.prior("suffix", 1, 0) == Beta(5.0, 5.0), "nobody knows that source"
    assert [posterior.prior("context", 1, rank).strength for rank in (0, 1, 2)] == [40, 20, 10]


def test_the_clusters_word_is_bounded() -> None:
    cluster = table(d0_r0=(1_000_000, 900_000))
    own = table(d0_r0=(100, 10))
    at = AcceptancePosterior(own, cluster=cluster, max_prior_strength=50).at("context", 1, 0)
    assert at.strength == 150
    assert at.mean == pytest.approx((50 * 0.9 + 10) / 150, abs=1e-3)
    with pytest.raises(ValueError, match="max_prior_strength must be above 0"):
        AcceptancePosterior(own, max_prior_strength=0)


@pytest.mark.parametrize(("depth", "rank"), [(0, 0), (1, -1)])
def test_places_that_no_node_has_are_refused(depth: int, rank: int) -> None:
    with pytest.raises(ValueError, match="depth must be at least 1 and rank at least 0"):
        AcceptancePosterior(AcceptanceTable()).at("context", depth, rank)


def test_counts_of_real_trees_become_probabilities() -> None:
    own = AcceptanceTable(("context",))
    for _ in range(60):
        own.observe(TokenTree.chain(0, [1, 2, 3], source=1), np.array([1, 2]))
    posterior = AcceptancePosterior(own)
    assert [round(posterior.at("context", depth, 0).mean, 1) for depth in (1, 2, 3)] == [0.9, 0.9, 0.1]
    low, high = posterior.at("context", 3, 0).interval()
    assert 0 < low < 0.1 < high < 0.2


def test_a_count_weighs_half_after_a_half_life() -> None:
    recent = RecentAcceptance(half_life=100)
    first = table(d0_r0=(1, 1))
    recent.observe(first)
    start = recent.counts("context")[0, 0, 0]
    recent.observe(first.add(table(d5_r0=(100, 0))))
    assert recent.counts("context")[0, 0, 0] == pytest.approx(start / 2)


def test_counters_of_another_incarnation_are_refused() -> None:
    recent = RecentAcceptance(half_life=100)
    recent.observe(table(d0_r0=(5, 3)))
    with pytest.raises(InvalidSnapshotError, match="counts of context have fallen"):
        recent.observe(table(d0_r0=(5, 2)))
    with pytest.raises(InvalidSnapshotError, match="counts of context have fallen"):
        recent.observe(AcceptanceTable())
    recent.observe(table(d0_r0=(6, 3)))
    assert recent.counts("context")[0, 0, 0] == pytest.approx(6, rel=0.05), "a refused reading changes nothing"


@pytest.mark.parametrize("half_life", [0, -1, math.nan])
def test_half_lives_are_above_zero(half_life: float) -> None:
    with pytest.raises(ValueError, match="half_life must be above 0"):
        RecentAcceptance(half_life=half_life)


EMPTY = np.zeros((2, len(DEPTH_EDGES), len(RANK_EDGES))).tolist()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"half_life": 0}, "half_life must be above 0"),
        ({"half_life": "long"}, "half_life must be above 0"),
        ({"read": None}, "read and recent must map"),
        ({"read": {}}, "depth_edges must be"),
        ({"recent": {"context": [1]}}, r"recent\.context must be counts"),
        ({"recent": {"context": "many"}}, r"recent\.context must be numbers"),
        ({"recent": {"context": [EMPTY[0], np.ones_like(EMPTY[1]).tolist()]}}, r"recent\.context must be counts"),
    ],
)
def test_what_is_no_snapshot_is_refused_naming_the_field(change: dict[str, Any], says: str) -> None:
    snapshot = {**RecentAcceptance(half_life=9).snapshot(), **change}
    with pytest.raises(InvalidSnapshotError, match=says):
        RecentAcceptance.from_snapshot(snapshot)
