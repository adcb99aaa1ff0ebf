"""Logit rules against transformers' processors, and against plain loops; many rows at once against each alone."""

import numpy as np
import pytest
import torch
from sampling_reference import processed_logits
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.runner.processing import RuledRow, apply_masks, apply_rules, unpacked

VOCAB = 300
END = (7, 11)
PROMPT = (5, 9, 5, 200)
OUTPUT = (9, 9, 31, 7)
PATH = (9, 40, 41, 40)


def _logits(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def _row(
    row: int,
    sampling: SamplingParams,
    *,
    prompt: tuple[int, ...] = PROMPT,
    output: tuple[int, ...] = OUTPUT,
    path: tuple[int, ...] = PATH,
) -> RuledRow:
    rules = LogitRules(sampling, prompt_ids=prompt, end_ids=(*END, *sampling.stop_token_ids), vocab_size=VOCAB)
    rules.commit(output)
    return RuledRow(row, rules, len(output) + len(path), path)


def _processed(sampling: SamplingParams, logits: torch.Tensor) -> torch.Tensor:
    changed = logits.clone()
    apply_rules(changed, [_row(0, sampling)])
    return changed


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    """Over the prompt, the output and the path."""
    logits = _logits(1)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*PROMPT, *OUTPUT, *PATH]]), logits.clone())
    torch.testing.assert_close(_processed(SamplingParams(repetition_penalty=penalty), logits), expected)


def test_logit_bias_is_that_of_transformers() -> None:
    logits = _logits(1)
    bias = {3: 2.5, 0: -100.0, 299: 0.25}
    expected = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])(
        torch.tensor([[*PROMPT]]), logits.clone()
    )
    torch.testing.assert_close(_processed(SamplingParams(logit_bias=tuple(bias.items())), logits), expected)


@pytest.mark.parametrize("min_tokens", [7, 8, 9, 12])
def test_min_tokens_is_that_of_transformers(min_tokens: int) -> None:
    """Eight tokens are there, four of them in the path."""
    logits = _logits(1)
    expected = MinNewTokensLengthLogitsProcessor(len(PROMPT), min_tokens, [*END, 50])(
        torch.tensor([[*PROMPT, *OUTPUT, *PATH]]), logits.clone()
    )
    sampling = SamplingParams(min_tokens=min_tokens, stop_token_ids=(50,))
    assert torch.equal(_processed(sampling, logits), expected)
    assert (expected == -torch.inf).any() == (min_tokens > 8)


_SAMPLING = (
    SamplingParams(frequency_penalty=0.7),
    SamplingParams(presence_penalty=-1.5),
    SamplingParams(repetition_penalty=1.7, frequency_penalty=-0.3, presence_penalty=0.4),
    SamplingParams(logit_bias=((9, 4.0), (40, -3.0), (7, 50.0)), repetition_penalty=1.2, presence_penalty=2.0),
    SamplingParams(allowed_token_ids=(9, 40, 7, 299)),
    SamplingParams(bad_word_ids=((3,), (41, 40, 8), (31, 7, 9, 40, 41, 40, 12), (40, 41, 6), (9, 9, 31, 8))),
    SamplingParams(
        allowed_token_ids=tuple(range(0, 300, 3)),
        bad_word_ids=((9,), (40, 30)),
        min_tokens=10,
        logit_bias=((33, 4.0), (34, 100.0)),
        repetition_penalty=1.3,
        frequency_penalty=-0.5,
    ),
    SamplingParams(min_tokens=10, stop_token_ids=(41,), logit_bias=((7, 100.0),), frequency_penalty=1.0),
)


@pytest.mark.parametrize("sampling", _SAMPLING)
def test_rules_are_those_of_plain_loops(sampling: SamplingParams) -> None:
    logits = _logits(1)
    expected = processed_logits(logits[0].tolist(), sampling, prompt=PROMPT, output=[*OUTPUT, *PATH], end_ids=END)
    torch.testing.assert_close(_processed(sampling, logits)[0], torch.tensor(expected))


def test_rows_together_are_as_each_alone_and_others_are_left_alone() -> None:
    logits = _logits(len(_SAMPLING) + 3)
    draw = np.random.default_rng(1)
    ruled = [
        _row(
            row,
            sampling,
            prompt=tuple(draw.integers(0, VOCAB, 50).tolist()),
            output=tuple(draw.integers(0, VOCAB, 30).tolist()),
            path=tuple(draw.integers(0, VOCAB, row).tolist()),
        )
        for row, sampling in zip((6, 0, 4, 2, 1, 8, 9, 10), _SAMPLING, strict=True)
    ]
    together = logits.clone()
    apply_rules(together, ruled)
    for one in ruled:
        alone = logits.clone()
        apply_rules(alone, [one])
        assert torch.equal(together[one.row], alone[one.row])
        assert not torch.equal(alone[one.row], logits[one.row])
    for row in (3, 5, 7):
        assert torch.equal(together[row], logits[row])


def test_no_rules_no_change() -> None:
    logits = _logits(2)
    changed = logits.clone()
    apply_rules(changed, [])
    assert torch.equal(changed, logits)


@pytest.mark.parametrize("vocab_size", [31, 32, 70])
@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], []])
def test_masks_leave_out_what_they_do_not_name(vocab_size: int, rows: list[int]) -> None:
    rng = np.random.default_rng(vocab_size)
    masks = rng.integers(-(2**31), 2**31, (len(rows), -(-vocab_size // 32))).astype(np.int32)
    before = torch.from_numpy(rng.standard_normal((3, vocab_size)).astype(np.float32))
    logits = before.clone()
    apply_masks(logits, list(zip(rows, masks, strict=True)))
    for row in range(3):
        for token in range(vocab_size):
            is_allowed = row not in rows or int(masks[rows.index(row)][token >> 5]) >> (token & 31) & 1
            assert float(logits[row, token]) == (float(before[row, token]) if is_allowed else -torch.inf)


def test_bits_come_lowest_first() -> None:
    words = torch.tensor([[1, -(2**31)], [6, -1]], dtype=torch.int32)
    assert [row.nonzero()[:, 0].tolist() for row in unpacked(words)] == [[0, 63], [1, 2, *range(32, 64)]]
