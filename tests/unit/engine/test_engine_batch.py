"""One step as flat arrays: rows, positions and parents, written out."""

import numpy as np
import pytest
from engine_helpers import make_request
from fakes import FakeTokenizer

from goose.tree import TokenTree
from goose.verify import VerifiedPath
from goose_ray.engine.batch import build_batch, harvest_of, kept_rows, row_counts
from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.scheduler import ScheduledSequence
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.step import HarvestRows, StepBatch


def sequence(name: str, tokens: list[int], *, computed: list[int]) -> SequenceState:
    """`computed`: the KV slots of the first tokens."""
    request = make_request(name, tokens, max_tokens=20)
    state = SequenceState(request, OutputStream(FakeTokenizer(), request.sampling, ()), arrived_s=0.0)
    state.computed(np.array(computed, np.int64))
    return state


#  row  0    1   2   3      4    5    6    7      8    9
#       anchor a, tree      chunk of b, no tree   chain of c, anchor, one draft
#       50                  20   21   22         30   31   99
#       ├─ 51 ── 53
#       └─ 52
TREE_A = TokenTree.from_parents([50, 51, 52, 53], [-1, 0, 0, 1])
TREE_C = TokenTree.from_parents([31, 99], [-1, 0])
SCHEDULED = (
    ScheduledSequence(sequence("a", [10, 11, 50], computed=[5, 3]), 1, True),
    ScheduledSequence(sequence("b", [19, 20, 21, 22, 23], computed=[8]), 3, False),
    ScheduledSequence(sequence("c", [30, 31], computed=[]), 2, True),
)
TREES = (TREE_A, None, TREE_C)


@pytest.fixture
def batch() -> StepBatch:
    return build_batch(SCHEDULED, TREES, np.arange(100, 110), step_id=7, harvest_k=2)


def test_there_is_a_row_for_each_chain_token_and_draft_and_no_other(batch: StepBatch) -> None:
    assert sum(count for _, count in row_counts(SCHEDULED, TREES)) == batch.num_rows == 10
    assert batch.token_ids.tolist() == [50, 51, 52, 53, 20, 21, 22, 30, 31, 99]
    assert batch.slots.tolist() == list(range(100, 110))


def test_positions_are_context_length_plus_depth(batch: StepBatch) -> None:
    assert batch.positions.tolist() == [2, 3, 3, 4, 1, 2, 3, 0, 1, 2]


def test_parents_are_rows_and_a_sequence_begins_without_one(batch: StepBatch) -> None:
    assert batch.parents.tolist() == [-1, 0, 0, 1, -1, 4, 5, -1, 7, 8]


def test_each_sequence_knows_its_part(batch: StepBatch) -> None:
    parts = [(s.request_id, s.row_start, s.row_end, s.num_chain, s.tree) for s in batch.sequences]
    assert parts == [("a", 0, 4, 1, TREE_A), ("b", 4, 7, 3, None), ("c", 7, 10, 2, TREE_C)]
    assert [s.context_slots.tolist() for s in batch.sequences] == [[5, 3], [8], []]
    assert (batch.step_id, batch.harvest_k) == (7, 2)


def test_every_array_is_int64(batch: StepBatch) -> None:
    for array in (batch.token_ids, batch.positions, batch.slots, batch.parents):
        assert array.dtype == np.int64


def test_an_anchor_alone_is_no_chain_to_harvest_and_a_recomputed_prefix_is_none_either() -> None:
    fresh = sequence("d", [1, 2, 3, 4], computed=[])
    again = sequence("e", [1, 2, 3, 4], computed=[0, 1, 2])
    again.context_slots.clear()
    decoding = sequence("f", [1, 2, 3, 4], computed=[4, 5, 6])
    scheduled = [ScheduledSequence(s, s.num_uncomputed, True) for s in (fresh, again, decoding)]
    built = build_batch(scheduled, [TokenTree.anchor_only(4)] * 3, np.arange(9), step_id=0, harvest_k=1)
    assert [s.harvest_chain for s in built.sequences] == [True, False, False]


def test_kept_are_the_chains_and_the_verified_paths(batch: StepBatch) -> None:
    paths = (
        VerifiedPath(np.array([1, 3]), np.array([51, 53, 60])),
        None,
        VerifiedPath(np.array([], int), np.array([98])),
    )
    assert kept_rows(batch, paths).tolist() == [True, True, False, True, *[True] * 3, True, True, False]


def test_a_harvested_row_is_told_with_the_token_before_it(batch: StepBatch) -> None:
    rows = np.array([0, 1, 3, 4, 5, 7, 8, 9])
    top = np.arange(16).reshape(8, 2)
    keep = np.array([True, True, False, True, True, True, True, True, True, False])
    harvest = harvest_of(batch, SCHEDULED, HarvestRows(rows, top, top.astype(np.float32)), keep)
    assert harvest.token_ids.tolist() == [50, 51, 53, 20, 21, 30, 31, 99]
    assert harvest.previous_ids.tolist() == [11, 50, 51, 19, 20, -1, 30, 31]
    assert harvest.top_ids is top
    origin = harvest.origin
    assert origin is not None
    assert origin.request_ids == ("a", "b", "c")
    assert origin.requests.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    # The last node of "c" was not committed.
    assert origin.positions.tolist() == [*batch.positions[rows[:-1]].tolist(), -1]
    assert origin.positions.tolist() == [2, 3, 4, 1, 2, 0, 1, -1]
