"""Scores put together from shares of the vocabulary, against those of all of it in one place."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from runner_steps import GREEDY, Part, build_step
from tiny_models import tiny_model

from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import StepBatch
from goose_ray.runner.head import LanguageModelHead
from goose_ray.runner.logprobs import path_logprobs
from goose_ray.runner.sharded_scoring import score_shard
from goose_ray.runner.verification import RowScores, score_rows, verify_trees


class ThreadRanks:
    """The RankGroup of ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: list[torch.Tensor | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=30)

    def at(self, rank: int) -> "ThreadRank":
        return ThreadRank(self, rank)


class ThreadRank:
    def __init__(self, group: ThreadRanks, rank: int) -> None:
        self.rank, self.size, self._group = rank, group.size, group

    def gather(self, part: torch.Tensor) -> torch.Tensor | None:
        self._group.parts[self.rank] = part
        self._group.barrier.wait()
        parts = [one for one in self._group.parts if one is not None]
        gathered = torch.stack(parts) if self.rank == 0 else None
        self._group.barrier.wait()
        return gathered


def sharded(batch: StepBatch, hidden: torch.Tensor, heads: Sequence[LanguageModelHead]) -> RowScores:
    """What rank 0 gets; the others get nothing."""
    group = ThreadRanks(len(heads))
    found: list[RowScores | BaseException | None] = [None] * len(heads)

    def run(rank: int) -> None:
        try:
            with torch.inference_mode():
                found[rank] = score_shard(batch, hidden, heads[rank], group.at(rank))
        except BaseException as error:
            found[rank] = error
            group.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(heads))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, *others = found
    assert others == [None] * len(others)
    assert isinstance(first, RowScores)
    return first


def a_batch(sampling: Sequence[SamplingParams], *, masked: bool = False) -> StepBatch:
    """`masked`: every node may be followed by an eighth of the vocabulary, and that of a rank may be nothing."""
    draw = np.random.default_rng(0)
    parts = [Part(chain=draw.integers(0, 128, 150).tolist(), harvest_chain=True), Part(chain=[1, 2])]
    for number, how in enumerate(sampling):
        parts.append(
            Part(
                chain=[number],
                drafts=(draw.integers(0, 128, 6).tolist(), [0, 0, 1, 1, 3, 4]),
                sampling=how,
                request_id=f"r{number}",
                output_position=number,
                token_masks=masks(draw, 7) if masked else None,
            )
        )
    return build_step(parts, np.arange(152 + 7 * len(sampling)), harvest_k=8)


def masks(draw: np.random.Generator, num_nodes: int) -> NDArray[np.int32]:
    """[num_nodes, 4]"""
    allowed = draw.random((num_nodes, 128)) < 1 / 8
    # of three and of five ranks the last has none of these
    allowed[::2, 70:] = False
    allowed[:, 69] = True
    return np.packbits(allowed, axis=1, bitorder="little").view(np.int32)


SAMPLINGS = (
    GREEDY,
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.1, seed=4, top_p=0.7),
    SamplingParams(temperature=0.9, seed=5, top_k=6, min_p=0.01),
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=1.3, seed=2, logprobs=0),
)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_scores_are_those_of_the_whole_vocabulary(num_ranks: int, masked: bool) -> None:
    model = tiny_model("llama")
    batch = a_batch(SAMPLINGS, masked=masked)
    torch.manual_seed(1)
    hidden = torch.randn(batch.num_rows, 48)
    with torch.inference_mode():
        whole = score_rows(batch, hidden, LanguageModelHead(model))
    heads = [LanguageModelHead(model, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    found = sharded(batch, hidden, heads)
    assert whole.harvest is not None
    assert found.harvest is not None
    assert found.harvest.rows.tolist() == whole.harvest.rows.tolist()
    assert found.harvest.top_ids.tolist() == whole.harvest.top_ids.tolist()
    np.testing.assert_allclose(found.harvest.top_probs, whole.harvest.top_probs, rtol=1e-5)
    paths, expected = verify_trees(batch, found), verify_trees(batch, whole)
    assert [None if path is None else path.token_ids.tolist() for path in paths] == [
        None if path is None else path.token_ids.tolist() for path in expected
    ]
    ours = path_logprobs(found.kept_logits, found.kept_index, batch.sequences, paths)
    theirs = path_logprobs(whole.kept_logits, whole.kept_index, batch.sequences, expected)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            np.testing.assert_allclose(one.chosen, other.chosen, atol=1e-5)
            assert one.top_ids.tolist() == other.top_ids.tolist()


def test_of_equals_the_lowest_id_is_taken() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    batch = build_step([Part(chain=[7], drafts=([0, 0], [0, 1]))], np.arange(3))
    heads = [LanguageModelHead(model, rank=rank, num_ranks=2) for rank in range(2)]
    (path,) = verify_trees(batch, sharded(batch, torch.randn(3, 48), heads))
    assert path is not None
    assert path.token_ids.tolist() == [0, 0, 0]


@pytest.mark.parametrize("masked", [False, True])
def test_whole_rows_are_gathered_only_where_they_are_needed(masked: bool) -> None:
    batch = a_batch(SAMPLINGS, masked=masked)
    model = tiny_model("llama")
    heads = [LanguageModelHead(model, rank=rank, num_ranks=2) for rank in range(2)]
    found = sharded(batch, torch.randn(batch.num_rows, 48), heads)
    trees = [step for step in batch.sequences if step.tree is not None]
    kept = [bool((found.kept_index[step.row_start : step.row_end] >= 0).any()) for step in trees]
    # greedy and the draw without limits need none, whatever a grammar leaves out
    assert kept == [False, False, True, True, True, True]
    assert len(found.kept_logits) == 4 * 7
