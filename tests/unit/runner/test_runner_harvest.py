"""The block-wise searches for the likeliest tokens equal plain ones."""

import pytest
import torch

from goose_ray.runner.harvest import LogitRows, top_successors


@pytest.mark.parametrize("vocab_size", [12, 128, 1000, 1280, 1281, 4096 + 127])
@pytest.mark.parametrize("k", [1, 2, 10])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_equals_topk_of_the_softmax(vocab_size: int, k: int, num_rows: int) -> None:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size + k))
    ids, probs = top_successors(logits, k)
    expected = logits.softmax(-1).topk(k)
    assert torch.equal(ids, expected.indices)
    assert torch.equal(probs, expected.values)


def test_successors_crowded_in_one_block_or_behind_the_last_are_found() -> None:
    logits = torch.zeros(2, 2000)
    logits[0, 130:140] = torch.arange(10, 0, -1).float()
    logits[1, 1990:2000] = torch.arange(10, 0, -1).float()
    ids, _ = top_successors(logits, 10)
    assert ids.tolist() == [list(range(130, 140)), list(range(1990, 2000))]


def test_softmax_scores_are_those_of_each_row_in_any_number_of_pieces() -> None:
    logits = torch.randn(7, 140_000, generator=torch.Generator().manual_seed(5))
    ids, probs = top_successors(logits, 4)
    assert torch.equal(probs, logits.softmax(-1).gather(1, ids))


@pytest.mark.parametrize("vocab_size", [12, 128, 256, 1281, 4096 + 127])
def test_of_equal_logits_the_lowest_id_is_the_likeliest(vocab_size: int) -> None:
    # Few levels: most rows have many equals, in several blocks and behind the last.
    levels = torch.randint(0, 3, (200, vocab_size), generator=torch.Generator().manual_seed(vocab_size)).float()
    rare = torch.where(torch.rand(200, vocab_size, generator=torch.Generator().manual_seed(7)) < 1e-3, 5.0, levels)
    for logits in (levels, rare, -rare):
        first = (logits == logits.max(-1, keepdim=True).values).int().argmax(-1)
        assert torch.equal(LogitRows(logits).likeliest(), first)


def test_no_rows_have_no_likeliest_token() -> None:
    assert LogitRows(torch.empty(0, 1000)).likeliest().tolist() == []
