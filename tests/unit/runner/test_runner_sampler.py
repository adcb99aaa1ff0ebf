"""Draws have the processed distribution, its support is transformers', and they hardly react to rounding."""

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.noise import gumbel, noise_keys
from goose_ray.runner.sampler import SamplingRows, cut_off, sample

_LIMITS = [
    *[(0, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.3, 0.0), (7, 1.0, 0.0), (1, 1.0, 0.0), (40, 0.8, 0.0), (3, 0.5, 0.0)],
    *[(300, 0.95, 0.0), (300, 1.0, 0.0), (900, 0.999, 0.0)],
    # min_p alone, then as what decides most, half or nothing
    *[(0, 1.0, 0.2), (0, 1.0, 0.001), (0, 1.0, 1.0)],
    *[(0, 0.9, 0.2), (0, 0.5, 0.01), (20, 1.0, 0.1), (20, 0.8, 0.05), (300, 0.95, 0.002), (900, 0.999, 1e-6)],
]


# Mass 0.88, then a tail of 0.12.
_HEAVY = [0.5, 0.2, 0.1, 0.05, 0.03, *[0.01] * 12]


def _rows(keys: np.ndarray, *, temperature: float, top_k: int, top_p: float, min_p: float = 0.0) -> SamplingRows:
    asked = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return SamplingRows.of([asked] * len(keys), torch.from_numpy(keys))


def _processed(
    logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> torch.Tensor:
    """Log-scores as transformers' parts give them in our order, -inf outside the support."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if min_p > 0:
        warpers.append(MinPLogitsWarper(min_p))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    processed: torch.Tensor = warpers(torch.zeros(len(logits), 1, dtype=torch.int64), logits.clone())
    return processed


def _chi_square_p(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """P(a statistic as large or larger) of observed counts; classes expected fewer than 5 times are merged."""
    expected = probs.double() * counts.sum()
    rare = expected < 5
    observed = torch.cat((counts[~rare].double(), counts[rare].sum()[None].double()))
    wanted = torch.cat((expected[~rare], expected[rare].sum()[None]))
    present = wanted > 0
    statistic = ((observed - wanted)[present] ** 2 / wanted[present]).sum()
    degrees = torch.tensor(float(present.sum() - 1), dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), _LIMITS)
@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
def test_support_is_that_of_transformers(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(20, 1000, generator=torch.Generator().manual_seed(1)) * 2
    processed = _processed(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scores = logits / temperature
    limits = (
        torch.full((20,), top_k),
        torch.full((20,), top_p, dtype=torch.float64),
        torch.full((20,), min_p, dtype=torch.float64),
    )
    for count in (50, 256, 1000):
        edge, complete = cut_off(scores.topk(count).values, scores.logsumexp(-1), *limits)
        known = complete if count < 1000 else torch.ones(20, dtype=torch.bool)
        assert torch.equal((scores >= edge[:, None])[known], (processed > -torch.inf)[known])
        # What is said to be complete is: no survivor lies below the values looked at.
        assert ((processed > -torch.inf).sum(-1) <= count)[complete].all()


@pytest.mark.parametrize(
    ("probs", "top_k", "top_p", "min_p", "count", "survivors"),
    [
        # Ties with the last that counts stay, wherever the sort put them; seen only by looking past them.
        ([0.4, 0.2, 0.2, 0.2], 0, 0.5, 0.0, 2, None),
        ([0.4, 0.2, 0.2, 0.2], 0, 0.5, 0.0, 3, None),
        ([0.4, 0.2, 0.2, 0.1, 0.1], 0, 0.5, 0.0, 4, 3),
        ([0.4, 0.2, 0.2, 0.2], 2, 1.0, 0.0, 2, None),
        ([0.4, 0.2, 0.2, 0.1, 0.1], 2, 1.0, 0.0, 4, 3),
        # top_p counts the mass that top_k leaves (0.88): the first two hold 0.795 of it, the first three 0.8 of all.
        (_HEAVY, 5, 0.79, 0.0, 4, None),
        (_HEAVY, 5, 0.79, 0.0, 6, 2),
        (_HEAVY, 0, 0.79, 0.0, 6, 3),
        # Nothing is certain while the candidates hold less than top_p.
        ([0.4, 0.3, 0.2, 0.1], 0, 0.8, 0.0, 2, None),
        # min_p: at least that share of the likeliest; ties with the bound stay; certain once one falls below it.
        ([0.4, 0.2, 0.2, 0.2], 0, 1.0, 0.4, 3, None),
        ([0.4, 0.2, 0.2, 0.1, 0.1], 0, 1.0, 0.4, 4, 3),
        # Of the 0.8 that min_p leaves the first two hold 0.75, of all only 0.6.
        ([0.4, 0.2, 0.2, 0.1, 0.1], 0, 0.7, 0.4, 4, 3),
        ([0.4, 0.2, 0.2, 0.1, 0.1], 0, 0.45, 0.4, 4, 1),
        ([0.4, 0.2, 0.2, 0.1, 0.1], 0, 0.45, 0.3, 3, None),
        ([0.4, 0.2, 0.2, 0.1, 0.1], 1, 1.0, 0.4, 2, 1),
        # The likeliest token always stays.
        ([0.4, 0.3, 0.2, 0.1], 0, 1.0, 1.0, 2, 1),
        ([0.4, 0.3, 0.2, 0.1], 0, 1e-9, 0.0, 2, 1),
    ],
)
def test_cut_off(probs: list[float], top_k: int, top_p: float, min_p: float, count: int, survivors: int | None) -> None:
    """`survivors` of the vocabulary, or None where `count` candidates cannot tell."""
    scores = torch.tensor([probs]).log().sort(descending=True).values
    edge, complete = cut_off(
        scores[:, :count],
        scores.logsumexp(-1),
        torch.tensor([top_k]),
        torch.tensor([top_p], dtype=torch.float64),
        torch.tensor([min_p], dtype=torch.float64),
    )
    assert complete.item() == (survivors is not None)
    if survivors is not None:
        assert (scores >= edge).sum() == survivors


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.0), (0, 0.9, 0.0), (6, 1.0, 0.0), (12, 0.8, 0.0), (0, 1.0, 0.05), (12, 0.9, 0.02)],
)
@pytest.mark.parametrize("vocab_size", [24, 400])
def test_draws_have_the_processed_distribution(vocab_size: int, top_k: int, top_p: float, min_p: float) -> None:
    """Chi-square over 40,000 draws; a correct sampler fails a case with probability 1e-6 (seeds are fixed)."""
    count = 40_000
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(2)) * 1.5
    probs = _processed(logits, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p).softmax(-1)[0]
    # Every pairing that occurs in serving: one seed over many positions, many seeds at one position.
    half = count // 2
    keys = np.concatenate(
        (noise_keys([11] * half, np.arange(half)), noise_keys(list(range(half)), np.full(half, 3, dtype=np.int64)))
    )
    draws = sample(logits.expand(count, -1), _rows(keys, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p))
    counts = torch.bincount(draws, minlength=vocab_size)
    assert counts[probs == 0].sum() == 0
    assert _chi_square_p(counts, probs) > 1e-6
    # And the two halves by themselves, so that a fault of one cannot hide in the other.
    for part in (draws[:half], draws[half:]):
        assert _chi_square_p(torch.bincount(part, minlength=vocab_size), probs) > 1e-6


def test_successive_positions_are_independent() -> None:
    """Chi-square on pairs of draws at t and t + 1 of one seed; false alarm 1e-6."""
    count = 40_000
    logits = torch.randn(1, 8, generator=torch.Generator().manual_seed(3))
    keys = noise_keys([5] * count, np.arange(count))
    draws = sample(logits.expand(count, -1), _rows(keys, temperature=1.0, top_k=0, top_p=1.0))
    probs = logits.softmax(-1)[0]
    pairs = torch.bincount(draws[0::2] * 8 + draws[1::2], minlength=64)
    assert _chi_square_p(pairs, torch.outer(probs, probs).flatten()) > 1e-6


def test_a_wide_nucleus_is_drawn_from_the_whole_vocabulary() -> None:
    """Beyond the first candidates the result is the one of looking at everything at once."""
    logits = torch.randn(30, 5000, generator=torch.Generator().manual_seed(4)) * 0.1
    keys = noise_keys([1] * 30, np.arange(30))
    draws = sample(logits, _rows(keys, temperature=1.0, top_k=0, top_p=0.9))
    processed = _processed(logits, temperature=1.0, top_k=0, top_p=0.9)
    noise = gumbel(torch.from_numpy(keys)[:, None], torch.arange(5000)[None])
    assert torch.equal(draws, (processed + noise).argmax(-1))
    assert (draws >= 256).any()


def test_rows_of_different_limits_are_drawn_as_if_alone() -> None:
    logits = torch.randn(12, 600, generator=torch.Generator().manual_seed(5))
    how = SamplingRows(
        temperature=torch.linspace(0.3, 2.0, 12),
        top_k=torch.tensor([0, 5, 400, 0, -1, 600, 1, 50, 0, 0, 3, 700]),
        top_p=torch.tensor([1.0, 1.0, 1.0, 0.5, 0.99, 1.0, 1.0, 0.7, 1.0, 0.2, 0.9, 1.0], dtype=torch.float64),
        keys=torch.from_numpy(noise_keys(list(range(12)), np.arange(12))),
        min_p=torch.tensor([0.0, 0.1, 0.0, 0.0, 0.01, 0.5, 0.0, 1e-4, 0.2, 0.0, 0.9, 0.0], dtype=torch.float64),
    )
    together = sample(logits, how)
    for row in range(12):
        alone = sample(logits[row : row + 1], how.select(torch.tensor([row])))
        assert alone[0] == together[row]


def test_rounding_rarely_changes_a_draw() -> None:
    """At most three times the total variation distance; the bound of Gumbel-max is twice. False alarm below 1e-6.

    With an inverse cumulated distribution it is more than a hundred times.
    """
    count, vocab_size = 2000, 4096
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(count, vocab_size, generator=generator)
    shaken = logits + 1e-3 * torch.randn(count, vocab_size, generator=generator)
    how = _rows(noise_keys([9] * count, np.arange(count)), temperature=1.0, top_k=0, top_p=1.0)
    changed = int((sample(logits, how) != sample(shaken, how)).sum())
    distance = float((logits.softmax(-1) - shaken.softmax(-1)).abs().sum()) / 2
    # About 0.8 expected distance in all, 1.6 expected changes at most: Poisson above 14 has probability 1e-9.
    assert distance < 1.0
    assert changed <= 14


def test_noise_is_keyed_by_seed_position_and_token() -> None:
    tokens = torch.arange(1000)[None]
    keys = torch.from_numpy(noise_keys([3, 3, 4, 3 + 2**64, -1, 2**64 - 1], np.array([0, 1, 0, 0, 0, 0])))
    noise = gumbel(keys[:, None], tokens)
    assert torch.equal(noise[0], noise[3])
    assert torch.equal(noise[4], noise[5])
    assert len({tuple(row.tolist()) for row in noise}) == 4
    some = torch.tensor([[7, 900, 3]])
    assert torch.equal(gumbel(keys[:1, None], some), noise[:1, some[0]])


def test_noise_is_standard_gumbel() -> None:
    """Kolmogorov-Smirnov over 10^6 values: the statistic exceeds 2.7 / sqrt(n) with probability 1e-6."""
    keys = torch.from_numpy(noise_keys([1] * 1000, np.arange(1000)))
    noise = gumbel(keys[:, None], torch.arange(1000)[None]).double().flatten().sort().values
    cumulated = (-(-noise).exp()).exp()
    steps = torch.arange(1, len(noise) + 1, dtype=torch.float64) / len(noise)
    assert float((cumulated - steps).abs().max()) < 2.7 / len(noise) ** 0.5
    assert torch.isfinite(noise).all()
