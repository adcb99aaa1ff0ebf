"""What a request may ask for is what a step's arrays can hold."""

from typing import Any

import pytest
import torch

from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError
from goose_ray.runner.sampler import SamplingRows, sample

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_k": LARGEST + 1}, "top_k"),
        # as many digits as JSON may bring: one more than that and Python would not print it
        ({"max_tokens": 10**4300 - 1}, "max_tokens"),
        ({"stop_token_ids": (1, LARGEST + 1)}, "stop_token_ids"),
    ],
)
def test_integers_beyond_64_bits_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{param} must not be above {LARGEST}") as refused:
        SamplingParams(**fields)
    assert refused.value.param == param


def test_the_largest_and_smallest_values_reach_the_sampler_unharmed() -> None:
    asked = SamplingParams(temperature=1e-5, top_k=LARGEST, top_p=5e-324)
    assert not asked.greedy
    logits = 30 * torch.randn(8, 500, generator=torch.Generator().manual_seed(0))
    for top_p in (asked.top_p, 1.0):
        how = SamplingRows(
            temperature=torch.full((8,), asked.temperature),
            top_k=torch.full((8,), asked.top_k),
            top_p=torch.full((8,), top_p, dtype=torch.float64),
            keys=torch.arange(8),
            min_p=torch.zeros(8, dtype=torch.float64),
        )
        assert sample(logits, how).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-40, 1e-6])
def test_a_temperature_as_good_as_zero_is_greedy(temperature: float) -> None:
    assert SamplingParams(temperature=temperature).greedy
