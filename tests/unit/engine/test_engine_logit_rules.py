"""What a sequence keeps for its logit rules as it grows."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError

tokens = st.lists(st.integers(0, 9), max_size=8)


def rules(
    sampling: SamplingParams, prompt: tuple[int, ...] = (4, 2, 4), end_ids: tuple[int, ...] = (0,)
) -> LogitRules | None:
    request = GenerationRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling)
    return LogitRules.of(request, end_ids, vocab_size=10)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.5, top_k=3, min_p=0.1)])
def test_who_asks_for_none_has_none(sampling: SamplingParams) -> None:
    assert rules(sampling) is None


@given(prompt=st.lists(st.integers(0, 9), min_size=1, max_size=8), steps=st.lists(tokens, max_size=5), path=tokens)
def test_counts_are_those_of_the_output_and_the_path(
    prompt: list[int], steps: list[list[int]], path: list[int]
) -> None:
    kept = rules(SamplingParams(repetition_penalty=1.1), tuple(prompt))
    assert kept is not None
    output: list[int] = []
    for step in steps:
        kept.commit(np.asarray(step, dtype=np.int64))
        output += step
        before = kept.counted_ids.tolist(), kept.counts.tolist()
        ids, counts = kept.counted_with(path)
        counted = Counter([*output, *path])
        assert ids.tolist() == sorted({*prompt, *output, *path})
        assert counts.tolist() == [counted[token] for token in ids.tolist()]
        assert (kept.counted_ids.tolist(), kept.counts.tolist()) == before


def test_the_prompt_counts_for_the_repetition_penalty_alone() -> None:
    kept = rules(SamplingParams(frequency_penalty=0.5))
    assert kept is not None
    assert kept.counted_ids.tolist() == []
    kept.commit([4, 4, 1])
    assert (kept.counted_ids.tolist(), kept.counts.tolist()) == ([1, 4], [1, 2])


def test_without_penalties_nothing_is_counted() -> None:
    kept = rules(SamplingParams(logit_bias=((3, 1.0),)))
    assert kept is not None
    kept.commit([4, 4, 1])
    assert kept.counted_ids.tolist() == []


def test_bans_hold_below_min_tokens_and_know_the_vocabulary() -> None:
    kept = rules(SamplingParams(min_tokens=2, max_tokens=4), end_ids=(9, 0, 10, 2**40))
    assert kept is not None
    assert kept.banned_ids.tolist() == [0, 9]
    assert [kept.bans_at(position) for position in range(4)] == [True, True, False, False]
    assert [kept.apply_from(position) for position in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"bad_word_ids": ((3,), (4,), (1, 2))},
        {"stop_token_ids": (3, 4), "min_tokens": 1},
        {"bad_word_ids": ((4,),), "stop_token_ids": (3,), "min_tokens": 1},
    ],
)
def test_rules_that_leave_no_allowed_token_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"allowed_token_ids must leave a token .* not \[3, 4\]") as refused:
        rules(SamplingParams(allowed_token_ids=(4, 3), **fields), end_ids=fields.get("stop_token_ids", ()))
    assert refused.value.param == "allowed_token_ids"
    assert rules(SamplingParams(allowed_token_ids=(4, 3, 5), **fields), end_ids=fields.get("stop_token_ids", ()))


@pytest.mark.parametrize("fields", [{"presence_penalty": 0.1}, {"logit_bias": ((1, 1.0),)}])
def test_penalties_and_biases_never_lapse(fields: dict[str, float]) -> None:
    kept = rules(SamplingParams(max_tokens=4, min_tokens=1, **fields))  # type: ignore[arg-type]
    assert kept is not None
    assert kept.apply_from(3)
