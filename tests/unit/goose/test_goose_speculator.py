"""The façade: lifecycle, limits across a batch, and what survives a request."""

from collections.abc import Sequence

import numpy as np
import pytest

from goose.errors import RequestStateError, UnknownNameError
from goose.observation import Harvest, TreeOutcome
from goose.policies.base import TreePolicy
from goose.policies.chain import ChainPolicy
from goose.policies.registry import POLICIES
from goose.request import DraftRequest
from goose.sources.registry import SourceSet
from goose.speculator import Speculator
from goose.tree import TokenTree
from goose.verify import walk

REPEATING = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]


def propose(speculator: Speculator, *request_ids: str, max_depth: int = 100, max_nodes: int = 1000) -> list[TokenTree]:
    return list(speculator.propose(request_ids, max_draft_depths=[max_depth] * len(request_ids), max_nodes=max_nodes))


def step(speculator: Speculator, request_id: str, target: Sequence[int]) -> TreeOutcome:
    """One step in which the target goes on with `target`, told to the speculator."""
    [tree] = propose(speculator, request_id)
    path = walk(tree, lambda node: target[int(tree.depths[node])])
    outcome = TreeOutcome(request_id, tree, path.accepted_nodes, path.token_ids, int(path.token_ids[-1]))
    speculator.observe([outcome], None)
    return outcome


def harvest(token: int, successors: Sequence[int]) -> Harvest:
    return Harvest(
        previous_ids=np.asarray([-1]),
        token_ids=np.asarray([token]),
        top_ids=np.asarray([successors]),
        top_probs=np.full((1, len(successors)), 0.5, dtype=np.float32),
    )


def test_the_anchor_is_the_last_committed_token() -> None:
    speculator = Speculator(policy="chain")
    speculator.start_request("r", REPEATING)
    assert step(speculator, "r", [4, 5, 99]).committed_ids.tolist() == [4, 5, 99]
    assert propose(speculator, "r")[0].token_ids.tolist() == [99]


def test_committed_tokens_become_text_to_copy() -> None:
    speculator = Speculator(policy="chain")
    speculator.start_request("r", [1, 2, 3])
    for token in (4, 5, 1, 2, 3):
        step(speculator, "r", [token, 0, 0])
    assert propose(speculator, "r")[0].token_ids.tolist() == [3, 4, 5, 1, 2, 3]


def test_a_harvest_without_outcomes_teaches_the_table() -> None:
    speculator = Speculator()
    speculator.start_request("r", [1, 2, 3])
    assert speculator.observe([], harvest(3, [8, 9])) == []
    assert propose(speculator, "r")[0].token_ids.tolist() == [3, 8, 9]


def test_what_is_learned_stays_for_the_next_request() -> None:
    speculator = Speculator()
    speculator.start_request("first", [1, 2, 3])
    speculator.observe([], harvest(3, [8, 9]))
    speculator.stop_request("first")
    speculator.start_request("second", [5, 3])
    assert propose(speculator, "second")[0].token_ids.tolist() == [3, 8, 9]


def test_an_id_used_again_gets_drafts_of_its_own_text() -> None:
    speculator = Speculator(policy="chain")
    speculator.start_request("r", REPEATING)
    speculator.stop_request("r")
    speculator.start_request("r", [1, 2, 3])
    assert propose(speculator, "r")[0].num_nodes == 1


def test_a_finished_request_leaves_no_moving_average() -> None:
    fresh, used = Speculator(), Speculator()
    used.start_request("r", REPEATING)
    for _ in range(10):
        step(used, "r", [90] * 200)
    used.stop_request("r")
    trees = []
    for speculator in (fresh, used):
        speculator.start_request("r", REPEATING)
        speculator.observe([], harvest(3, [8, 9]))
        trees.append(propose(speculator, "r")[0])
    assert trees[0].token_ids.tolist() == trees[1].token_ids.tolist()
    assert trees[0].parents.tolist() == trees[1].parents.tolist()


def test_each_request_may_have_a_policy_and_a_budget_of_its_own() -> None:
    speculator = Speculator(policy="chain", budget=60)
    speculator.start_request("default", REPEATING)
    speculator.start_request("plain", REPEATING, policy="autoregressive")
    speculator.start_request("short", REPEATING, budget=3)
    assert [tree.num_nodes for tree in propose(speculator, "plain", "default", "short")] == [1, 9, 3]


def test_nodes_left_by_one_policy_go_to_the_next() -> None:
    speculator = Speculator(policy="chain")
    speculator.start_request("plain", REPEATING, policy="autoregressive")
    speculator.start_request("chain", REPEATING)
    assert [tree.num_nodes for tree in propose(speculator, "plain", "chain", max_nodes=8)] == [1, 7]


def test_a_batch_shares_its_nodes() -> None:
    speculator = Speculator(policy="chain")
    for name in ("a", "b"):
        speculator.start_request(name, REPEATING)
    assert [tree.num_nodes for tree in propose(speculator, "a", "b", max_nodes=10)] == [5, 5]
    assert [tree.num_nodes for tree in propose(speculator, "a", "b", max_nodes=2)] == [1, 1]


def test_depth_limits_are_each_requests_own() -> None:
    speculator = Speculator(policy="chain")
    for name in ("a", "b"):
        speculator.start_request(name, REPEATING)
    batch = speculator.propose(["b", "a"], max_draft_depths=[2, 0], max_nodes=100)
    assert [tree.num_nodes for tree in batch] == [3, 1]


def test_a_harvest_is_wanted_while_a_live_request_uses_it() -> None:
    speculator = Speculator(policy="chain", harvest_k=7)
    assert speculator.harvest_k == 0
    speculator.start_request("c", [1])
    assert speculator.harvest_k == 0
    speculator.start_request("g", [1], policy="goose")
    assert speculator.harvest_k == 7
    speculator.stop_request("g")
    assert speculator.harvest_k == 0


def test_prompts_are_needed_by_sources_that_draft_from_harvested_rows() -> None:
    speculator = Speculator(policy="chain")
    assert not speculator.needs_prompts
    for name, policy, needed in (("c", "chain", False), ("a", "anisotropic", False), ("g", "goose", True)):
        speculator.start_request(name, [1], policy=policy)
        assert speculator.needs_prompts == needed
    speculator.stop_request("g")
    assert not speculator.needs_prompts


def test_outcomes_are_credited_by_source_and_counted() -> None:
    speculator = Speculator(policy="chain")
    speculator.start_request("a", REPEATING)
    speculator.start_request("b", [1])
    trees = propose(speculator, "a", "b")
    outcomes = [
        TreeOutcome("a", trees[0], np.asarray([1, 2]), np.asarray([4, 5, 9]), 9),
        TreeOutcome("b", trees[1], np.empty(0, dtype=np.int64), np.asarray([2]), 2),
    ]
    assert speculator.observe(outcomes, None) == [{"context": (3, 2)}, {}]
    assert speculator.counters().totals()["context"] == (3, 2)


def test_counters_are_a_copy_that_outlives_the_request() -> None:
    speculator = Speculator(policy="chain")
    speculator.start_request("r", REPEATING)
    before = speculator.counters()
    step(speculator, "r", [4, 5, 6, 99])
    speculator.stop_request("r")
    assert before.totals()["context"] == (0, 0)
    assert speculator.counters().totals()["context"] == (4, 3)


def test_names_are_published() -> None:
    speculator = Speculator()
    assert speculator.policies == (
        "anisotropic",
        "autoregressive",
        "balanced",
        "chain",
        "goose",
        "recycling",
        "suffix",
    )
    assert speculator.source_names == ("context", "transitions", "pool", "grammar")
    assert (speculator.policy, speculator.budget) == ("goose", 60)


def test_verbs_out_of_order_name_the_request() -> None:
    speculator = Speculator()
    speculator.start_request("r", [1])
    with pytest.raises(RequestStateError, match="'r' was started already"):
        speculator.start_request("r", [1])
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        propose(speculator, "r", "gone")
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        speculator.stop_request("gone")
    outcome = TreeOutcome("gone", TokenTree.anchor_only(1), np.empty(0, dtype=np.int64), np.asarray([1]), 1)
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        speculator.observe([outcome], None)


def test_a_refused_request_is_not_started() -> None:
    speculator = Speculator()
    with pytest.raises(UnknownNameError, match="no policy 'best'; known: anisotropic, autoregressive, balanced, chain"):
        speculator.start_request("r", [1], policy="best")
    with pytest.raises(ValueError, match="'r': prompt_ids"):
        speculator.start_request("r", [])
    with pytest.raises(ValueError, match="'r': budget must be at least 1"):
        speculator.start_request("r", [1], budget=0)
    speculator.start_request("r", [1])


@pytest.mark.parametrize("wrong", [-1, 2**31, 2**40])
def test_what_is_no_token_id_is_refused(wrong: int) -> None:
    # kept as 32-bit integers it would be another token, and the tree's anchor with it
    speculator = Speculator()
    with pytest.raises(ValueError, match=f"'r': prompt_ids must be token ids from 0 to 2147483647, not {wrong}"):
        speculator.start_request("r", [5, wrong, 7])
    speculator.start_request("r", [5, 2**31 - 1])


def test_a_policy_that_raises_leaves_the_request_in_no_source() -> None:
    class Moody(ChainPolicy):
        is_moody = True

        def start_request(self, request: DraftRequest) -> None:
            if self.is_moody:
                raise MemoryError("not today")
            super().start_request(request)

    speculator = Speculator(policy="moody", builders={"moody": Moody})
    with pytest.raises(MemoryError):
        speculator.start_request("r", [1, 2, 1, 2])
    Moody.is_moody = False
    speculator.start_request("r", REPEATING)
    assert propose(speculator, "r")[0].token_ids.tolist() == [3, 4, 5, 6, 7, 8, 1, 2, 3]
    speculator.stop_request("r")


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="'best'"):
        Speculator(policy="best")
    with pytest.raises(ValueError, match="budget"):
        Speculator(budget=0)
    with pytest.raises(ValueError, match="harvest_k"):
        Speculator(harvest_k=0)
    speculator = Speculator()
    speculator.start_request("r", [1])
    with pytest.raises(ValueError, match="max_nodes must hold an anchor a request: 0 for 1"):
        propose(speculator, "r", max_nodes=0)
    for depths in ([], [3, 3]):
        with pytest.raises(ValueError, match=f"1 request_ids need as many max_draft_depths, not {len(depths)}"):
            speculator.propose(["r"], max_draft_depths=depths, max_nodes=9)


@pytest.mark.parametrize(
    "shapes",
    [
        ((1,), (2,), (2, 3), (2, 3)),
        ((2,), (2,), (1, 3), (1, 3)),
        ((2,), (2,), (2, 3), (2, 2)),
        ((2,), (2,), (2,), (2,)),
    ],
)
def test_a_harvest_of_arrays_that_do_not_fit_is_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    previous, tokens, ids, probs = shapes
    with pytest.raises(ValueError, match=r"a harvest needs previous_ids and token_ids \[num_rows\]"):
        Harvest(np.zeros(previous, int), np.zeros(tokens, int), np.zeros(ids, int), np.zeros(probs, np.float32))


def test_preparing_builds_every_policy_and_keeps_none() -> None:
    built = []

    def chain(sources: SourceSet) -> TreePolicy:
        built.append(sources)
        return ChainPolicy(sources)

    speculator = Speculator(
        policy="autoregressive", builders={"autoregressive": POLICIES["autoregressive"], "chain": chain}
    )
    speculator.prepare()
    assert len(built) == 1
    speculator.start_request("r", REPEATING, policy="chain")
    assert len(built) == 2, "what was built to prepare is used"
    assert built[0] is not built[1]
    assert propose(speculator, "r")[0].num_nodes > 1
