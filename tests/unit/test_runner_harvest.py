"""The block-wise search for the likeliest successors equals a plain one."""

import pytest
import torch

from goose_ray.runner.harvest import top_successors


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
