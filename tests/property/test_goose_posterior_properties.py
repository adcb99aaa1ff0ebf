"""Posteriors and forgetting: what holds for any counts, in any order of reporting."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goose.beta import Beta
from goose.calibration import DEPTH_EDGES, RANK_EDGES, AcceptanceTable
from goose.forgetting import RecentAcceptance
from goose.posterior import AcceptancePosterior

SHAPE = (len(DEPTH_EDGES), len(RANK_EDGES))
NAMES = ("context", "transitions")
POSITIVE = st.floats(0.05, 500.0)
HALF_LIVES = st.floats(1.0, 1e5)


@st.composite
def tables(draw: st.DrawFn, *, largest: int = 2000) -> AcceptanceTable:
    """Any counts, most buckets empty, some accepted wholly or never."""
    counts = {}
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        attempted, accepted = np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.int64)
        for _ in range(draw(st.integers(0, 5))):
            bucket = draw(st.integers(0, SHAPE[0] - 1)), draw(st.integers(0, SHAPE[1] - 1))
            attempted[bucket] = draw(st.integers(0, largest))
            accepted[bucket] = draw(st.integers(0, int(attempted[bucket])))
        counts[name] = [attempted.tolist(), accepted.tolist()]
    return AcceptanceTable.from_snapshot({**AcceptanceTable().snapshot(), "sources": counts})


def bucket_table(attempted: int, accepted: int, *, name: str = "context") -> AcceptanceTable:
    """Counts at depth 1 and rank 0 alone."""
    counts = np.zeros((2, *SHAPE), np.int64)
    counts[:, 0, 0] = attempted, accepted
    return AcceptanceTable.from_snapshot({**AcceptanceTable().snapshot(), "sources": {name: counts.tolist()}})


@given(POSITIVE, POSITIVE, st.floats(0.001, 0.999))
def test_a_quantile_is_where_the_distribution_reaches_its_share(alpha: float, beta: float, share: float) -> None:
    found = Beta(alpha, beta).quantile(share)
    assert 0 <= found <= 1
    # Where the density is steep, 1e-12 of p is more of the share: at the edges for small alpha or beta.
    if 1e-6 < found < 1 - 1e-6:
        assert Beta(alpha, beta).cdf(found) == pytest.approx(share, abs=1e-6)


@given(POSITIVE, POSITIVE, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_distribution_rises_from_zero_to_one_and_mirrors(alpha: float, beta: float, p: float, q: float) -> None:
    one = Beta(alpha, beta)
    low, high = sorted((p, q))
    assert 0.0 <= one.cdf(low) <= one.cdf(high) + 1e-9
    assert one.cdf(high) <= 1.0 + 1e-12
    assert one.cdf(p) == pytest.approx(1.0 - Beta(beta, alpha).cdf(1.0 - p), abs=1e-9)


@given(tables(), tables(), st.integers(1, 200), st.integers(0, 20))
def test_a_posterior_lies_between_its_prior_and_what_was_seen(
    own: AcceptanceTable, cluster: AcceptanceTable, depth: int, rank: int
) -> None:
    posterior = AcceptancePosterior(own, cluster=cluster)
    for name in posterior.source_names:
        prior, after = posterior.prior(name, depth, rank), posterior.at(name, depth, rank)
        place = np.searchsorted(DEPTH_EDGES, depth, "right") - 1, np.searchsorted(RANK_EDGES, rank, "right") - 1
        attempted, accepted = own.counts(name)[:, *place].tolist() if name in own.source_names else (0, 0)
        assert after.strength == pytest.approx(prior.strength + attempted)
        if attempted == 0:
            assert after == prior
        else:
            low, high = sorted((prior.mean, accepted / attempted))
            assert low - 1e-12 <= after.mean <= high + 1e-12
        assert 0.0 < after.mean < 1.0
        assert posterior.means(name)[place] == pytest.approx(after.mean)


@given(st.integers(0, 300), st.integers(0, 300), tables())
def test_one_more_accepted_node_raises_the_mean(accepted: int, rejected: int, cluster: AcceptanceTable) -> None:
    tried = accepted + rejected
    before = AcceptancePosterior(bucket_table(tried, accepted), cluster=cluster).at("context", 1, 0)
    hit = AcceptancePosterior(bucket_table(tried + 1, accepted + 1), cluster=cluster).at("context", 1, 0)
    miss = AcceptancePosterior(bucket_table(tried + 1, accepted), cluster=cluster).at("context", 1, 0)
    assert miss.mean < before.mean < hit.mean


@given(tables(largest=10**7), st.integers(0, 20))
def test_own_experience_overrules_any_cluster(cluster: AcceptanceTable, tenths: int) -> None:
    """10,000 own attempts against at most 100 of the cluster's: the mean is within one hundredth of what was seen."""
    seen = tenths / 20
    own = bucket_table(10_000, round(10_000 * seen))
    assert AcceptancePosterior(own, cluster=cluster).at("context", 1, 0).mean == pytest.approx(seen, abs=0.01)


@given(st.integers(1, 400), st.floats(0.0, 1.0))
def test_an_interval_holds_the_mean_and_narrows_with_attempts(attempted: int, share: float) -> None:
    def width(times: int) -> float:
        tried = attempted * times
        posterior = AcceptancePosterior(bucket_table(tried, round(share * tried))).at("context", 1, 0)
        low, high = posterior.interval()
        assert low <= posterior.mean <= high
        return high - low

    assert width(100) < width(1)


@given(st.lists(tables(), min_size=1, max_size=4))
def test_without_forgetting_recent_counts_are_the_cumulative_ones(reports: list[AcceptanceTable]) -> None:
    recent, cumulative = RecentAcceptance(half_life=math.inf), AcceptanceTable()
    for report in reports:
        cumulative = cumulative.add(report)
        recent.observe(cumulative)
    for name in cumulative.source_names:
        assert recent.counts(name) == pytest.approx(cumulative.counts(name))


@given(st.lists(tables(), min_size=1, max_size=5), HALF_LIVES)
def test_recent_counts_are_bounded_and_never_more_accepted_than_tried(
    reports: list[AcceptanceTable], half_life: float
) -> None:
    recent, cumulative = RecentAcceptance(half_life=half_life), AcceptanceTable()
    for report in reports:
        cumulative = cumulative.add(report)
        recent.observe(cumulative)
    for name in recent.source_names:
        attempted, accepted = recent.counts(name)
        assert attempted.sum() <= half_life / math.log(2) * (1 + 1e-9)
        assert (accepted <= attempted).all()
        assert (attempted <= cumulative.counts(name)[0] + 1e-9).all()


@given(tables(), st.integers(1, 6), HALF_LIVES)
def test_how_often_counters_are_read_changes_nothing(increment: AcceptanceTable, times: int, half_life: float) -> None:
    often, once, cumulative = (
        RecentAcceptance(half_life=half_life),
        RecentAcceptance(half_life=half_life),
        AcceptanceTable(),
    )
    for _ in range(times):
        cumulative = cumulative.add(increment)
        often.observe(cumulative)
        often.observe(cumulative)
    once.observe(cumulative)
    for name in cumulative.source_names:
        assert often.counts(name) == pytest.approx(once.counts(name))


@given(st.integers(20, 500), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_drift_is_followed(half_life: int, before: float, after: float) -> None:
    """After ten half-lives of another acceptance, a thousandth of the old counts is left."""
    attempts = 10 * half_life
    recent = RecentAcceptance(half_life=half_life)
    old = bucket_table(attempts, round(before * attempts))
    recent.observe(old)
    recent.observe(old.add(bucket_table(attempts, round(after * attempts))))
    attempted, accepted = recent.counts("context")[:, 0, 0]
    assert accepted / attempted == pytest.approx(round(after * attempts) / attempts, abs=0.002)


@given(st.lists(tables(), min_size=1, max_size=3), tables(), HALF_LIVES)
def test_a_snapshot_survives_the_wire_and_counts_on(
    reports: list[AcceptanceTable], later: AcceptanceTable, half_life: float
) -> None:
    recent, cumulative = RecentAcceptance(half_life=half_life), AcceptanceTable()
    for report in reports:
        cumulative = cumulative.add(report)
        recent.observe(cumulative)
    again = RecentAcceptance.from_snapshot(json.loads(json.dumps(recent.snapshot())))
    for one in (recent, again):
        one.observe(cumulative.add(later))
    for name in recent.source_names:
        assert np.array_equal(again.counts(name), recent.counts(name))
