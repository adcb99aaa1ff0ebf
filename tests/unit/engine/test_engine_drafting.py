"""A faulty speculator costs speed, is counted and logged, and changes no output."""

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, plain_reply, run
from fakes import EOS, FakeTokenizer, looping_model

from goose.observation import Harvest, TreeOutcome
from goose.tree import FloatArray, IntArray, TokenTree, TreeBatch
from goose_ray.engine.drafting import unverifiable

MODEL = looping_model()
Spoil = Callable[[TreeBatch], TreeBatch]


class Faulty(ScriptedSpeculator):
    """Breaks in one method, or returns what `spoil` makes of its trees."""

    breaks_in: str = ""
    spoil: Spoil = staticmethod(lambda batch: batch)

    def start_request(
        self,
        request_id: str,
        prompt_ids: Sequence[int] | IntArray,
        *,
        stop_token_ids: Iterable[int] = (),
        cache_salt: str | None = None,
        policy: str | None = None,
        budget: int | None = None,
    ) -> None:
        self._maybe_break("start_request")
        super().start_request(request_id, prompt_ids, stop_token_ids=stop_token_ids)

    def propose(
        self,
        request_ids: Sequence[str],
        *,
        max_draft_depths: Sequence[int],
        max_nodes: int,
        step_seconds: FloatArray | None = None,
    ) -> TreeBatch:
        self._maybe_break("propose")
        return self.spoil(super().propose(request_ids, max_draft_depths=max_draft_depths, max_nodes=max_nodes))

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[dict[str, tuple[int, int]]]:
        self._maybe_break("observe")
        return super().observe(outcomes, harvest)

    def stop_request(self, request_id: str) -> None:
        self._maybe_break("stop_request")
        super().stop_request(request_id)

    def _maybe_break(self, method: str) -> None:
        if method == self.breaks_in:
            raise ZeroDivisionError(f"a bug in {method}")


def faulty(*, breaks_in: str = "", spoil: Spoil | None = None) -> Faulty:
    speculator = Faulty(MODEL)
    speculator.breaks_in = breaks_in
    if spoil is not None:
        speculator.spoil = spoil
    return speculator


def check_lossless(speculator: Faulty) -> int:
    """Runs three requests, checks their replies, gives the number of errors counted."""
    requests = [make_request(name, (1, 2, 3 + i), max_tokens=20) for i, name in enumerate("abc")]
    engine = make_engine(MODEL, speculator)
    replies = run(engine, *requests)
    for request in requests:
        expected = plain_reply(MODEL, request, FakeTokenizer(specials=(EOS,)))
        assert replies[request.request_id].visible == expected
    return engine.stats().num_draft_errors


@pytest.mark.parametrize("method", ["start_request", "propose", "observe", "stop_request"])
def test_an_exception_costs_speed_alone(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "goose_ray"):
        assert check_lossless(faulty(breaks_in=method)) >= 3
    assert f"a bug in {method}" in caplog.text


def spoil_tree(batch: TreeBatch, tree: TokenTree) -> TreeBatch:
    return TreeBatch((tree, *batch.trees[1:]))


def with_arrays(tree: TokenTree, *, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> TokenTree:
    """A tree that `from_parents` would refuse."""
    size = len(tokens)
    return TokenTree(
        np.array(tokens), np.array(parents), np.array(depths), np.zeros(size, np.int64), np.ones(size, np.float32)
    )


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda batch: TreeBatch(batch.trees[1:]), id="a tree too few"),
        pytest.param(lambda batch: spoil_tree(batch, TokenTree.anchor_only(63)), id="another anchor"),
        pytest.param(
            lambda b: spoil_tree(b, TokenTree.from_parents([b[0].token_ids[0], 64], [-1, 0])), id="an unknown token"
        ),
        pytest.param(
            lambda b: spoil_tree(b, TokenTree.from_parents([b[0].token_ids[0], -1], [-1, 0])), id="a negative token"
        ),
        pytest.param(
            lambda b: spoil_tree(b, TokenTree.from_parents([b[0].token_ids[0], *[1] * 40], range(-1, 40))),
            id="too deep",
        ),
        pytest.param(lambda b: spoil_tree(b, with_arrays(b[0], tokens=[], parents=[], depths=[])), id="no anchor"),
        pytest.param(
            lambda b: spoil_tree(b, with_arrays(b[0], tokens=[b[0].token_ids[0], 1], parents=[-1], depths=[0])),
            id="arrays of different lengths",
        ),
    ],
)
def test_a_tree_that_cannot_be_verified_is_not(spoil: Spoil) -> None:
    assert check_lossless(faulty(spoil=spoil)) >= 3


def test_more_nodes_than_asked_for_are_refused() -> None:
    def too_many(batch: TreeBatch) -> TreeBatch:
        anchor = int(batch[0].token_ids[0])
        return spoil_tree(batch, TokenTree.from_parents([anchor, *[1] * 600], [-1, *[0] * 600]))

    assert check_lossless(faulty(spoil=too_many)) >= 3


def test_one_faulty_tree_does_not_cost_the_others_their_drafts() -> None:
    engine = make_engine(MODEL, faulty(spoil=lambda batch: spoil_tree(batch, TokenTree.anchor_only(63))))
    run(engine, *(make_request(name, (1, 2, 3 + i), max_tokens=20) for i, name in enumerate("ab")))
    # b, drafted well, was done long before a, which was not.
    assert engine.stats().num_accepted_tokens > 10
    assert [part.request_id for part in engine.trace.last(1)[0].sequences] == ["a"]


def test_a_recurring_fault_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "goose_ray"):
        num_errors = check_lossless(faulty(breaks_in="propose"))
    assert num_errors == 20
    assert len(caplog.records) == 5  # the 1st, 2nd, 4th, 8th and 16th


@pytest.mark.parametrize(
    ("parents", "depths", "wrong"),
    [
        ([-1, 0, 1], [0, 1, 2], set()),
        ([-1, 0, 0], [0, 1, 1], set()),
        ([0, 0, 1], [0, 1, 2], {1}),
        ([-1, -1, 0], [0, 0, 1], {1}),
        ([-1, 2, 0], [0, 2, 1], {1}),
        ([-1, 1, 0], [0, 1, 1], {1}),
        ([-1, 0, 9], [0, 1, 2], {1}),
        ([-1, 0, 1], [0, 1, 1], {1}),
        ([-1, 0, 1], [1, 2, 3], {1}),
    ],
)
def test_arrays_that_are_no_tree_are_found(parents: list[int], depths: list[int], wrong: set[int]) -> None:
    good = TokenTree.from_parents([5, 6, 7, 8], [-1, 0, 1, 1])
    odd = with_arrays(good, tokens=[5, 6, 7], parents=parents, depths=depths)
    assert unverifiable([good, odd, good], [5, 5, 5], [2, 2, 2], 64) == wrong
