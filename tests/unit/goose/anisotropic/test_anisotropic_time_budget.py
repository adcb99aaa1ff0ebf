"""Automatic budgets: what a node costs decides how many are verified, and what is cut off is still learned from."""

from collections.abc import Sequence

import numpy as np
import pytest

from goose.allocation import cut_trees
from goose.anisotropic.budget import TimeBudget
from goose.observation import TreeOutcome
from goose.policies.anisotropic import AnisotropicConstants, AnisotropicPolicy
from goose.request import DraftRequest, TreeQuery
from goose.sources.registry import SourceSet
from goose.speculator import AUTOMATIC_NODES, Speculator
from goose.tree import FloatArray, TokenTree

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 10, 11, 1, 2, 3]
FREE = np.ones(401, dtype=np.float32)
DEAR = np.arange(1, 402, dtype=np.float32) ** 2
# Four rows for the price of one, a fifth for that of many.
FOUR = np.where(np.arange(401) <= 4, 1.0, 50.0).astype(np.float32)


def started(*names: str, automatic: bool = True) -> AnisotropicPolicy:
    policy = AnisotropicPolicy(SourceSet(harvest_k=10), constants=AnisotropicConstants(max_positions=1 << 14))
    for name in names:
        policy.start_request(
            DraftRequest(
                request_id=name,
                prompt_ids=np.asarray(PROMPT),
                stop_token_ids=frozenset(),
                cache_salt=None,
                budget=AUTOMATIC_NODES,
                is_automatic=automatic,
            )
        )
    return policy


def trees(policy: AnisotropicPolicy, *names: str, seconds: FloatArray | None) -> list[TokenTree]:
    return policy.propose([TreeQuery(name, PROMPT[-1], 50) for name in names], 400, seconds)


def outcome(tree: TokenTree, accepted: Sequence[int], bonus: int) -> TreeOutcome:
    nodes = np.asarray(accepted, dtype=np.int64)
    return TreeOutcome("a", tree, nodes, np.append(tree.token_ids[nodes], bonus), bonus)


def test_nodes_are_taken_by_what_they_cost() -> None:
    sizes = [trees(started("a"), "a", seconds=curve)[0].num_nodes for curve in (DEAR, FOUR, FREE)]
    assert sizes[:2] == [1, 4]
    assert sizes[2] > 4


@pytest.mark.parametrize("room", [3, 4, 7])
def test_nodes_that_cost_nothing_fill_the_room_and_no_more(room: int) -> None:
    names = ("a", "b", "c")
    queries = [TreeQuery(name, PROMPT[-1], 50) for name in names]
    drafted = started(*names).propose(queries, room, FREE)
    assert sum(tree.num_nodes for tree in drafted) == room


def test_a_dear_machine_decodes_plainly_in_every_sequence() -> None:
    names = [str(number) for number in range(8)]
    assert [tree.num_nodes for tree in trees(started(*names), *names, seconds=DEAR)] == [1] * 8


@pytest.mark.parametrize("curve", [DEAR, FOUR], ids=["plain", "four"])
def test_a_cut_tree_teaches_as_much_as_the_whole_one(curve: FloatArray) -> None:
    cutting, whole = started("a"), started("a")
    before = cutting.weights.values.copy()
    [cut], [full] = trees(cutting, "a", seconds=curve), trees(whole, "a", seconds=FREE)
    path = full.path_to(next(i for i in range(full.num_nodes) if full.depths[i] == cut.depths.max()))
    same_path = cut.path_to(cut.num_nodes - 1)
    assert cut.token_ids[same_path].tolist() == full.token_ids[path].tolist()
    cutting.observe([outcome(cut, same_path, bonus=7)], None)
    whole.observe([outcome(full, path, bonus=7)], None)
    assert (cutting.weights.values != before).any()
    assert cutting.weights.values.tolist() == whole.weights.values.tolist()
    # and what was committed is the same text to copy from
    again = [trees(policy, "a", seconds=FREE)[0] for policy in (cutting, whole)]
    assert again[0].token_ids.tolist() == again[1].token_ids.tolist()


def test_without_durations_automatic_means_sixty_nodes() -> None:
    automatic, fixed = trees(started("a"), "a", seconds=None), trees(started("a", automatic=False), "a", seconds=FOUR)
    assert automatic[0].token_ids.tolist() == fixed[0].token_ids.tolist()


def test_a_request_with_a_budget_keeps_it_beside_automatic_ones() -> None:
    speculator = Speculator(policy="anisotropic", budget=None)
    speculator.start_request("automatic", PROMPT)
    speculator.start_request("fixed", PROMPT, budget=8)
    speculator.start_request("plain", PROMPT, budget=1)
    batch = speculator.propose(
        ["automatic", "fixed", "plain"], max_draft_depths=[50] * 3, max_nodes=400, step_seconds=DEAR
    )
    assert [tree.num_nodes > 1 for tree in batch] == [False, True, False]


def test_other_policies_take_sixty_and_the_automatic_ones_pay_for_it() -> None:
    """The nodes of the other policies are rows of the same step, and so part of its cost."""
    speculator = Speculator(policy="anisotropic", budget=None)
    speculator.start_request("chain", PROMPT, policy="chain")
    speculator.start_request("automatic", PROMPT)
    depths = [50, 50]

    def sizes(seconds: FloatArray) -> list[int]:
        batch = speculator.propose(["chain", "automatic"], max_draft_depths=depths, max_nodes=400, step_seconds=seconds)
        return [tree.num_nodes for tree in batch]

    chain, _ = sizes(FREE)
    assert chain > 4
    # Room for three more rows beside the chain's, and none behind them.
    seconds = np.where(np.arange(401) <= chain + 3, 1.0, 50.0).astype(np.float32)
    assert sizes(seconds) == [chain, 3]


def test_a_second_is_worth_what_the_last_step_made_of_it() -> None:
    budget = TimeBudget()
    seconds = np.linspace(1.0, 5.0, 401, dtype=np.float32)
    plain = budget.limits(2, seconds, 400).thresholds[0]
    budget.observe(tokens=100.0, seconds=1.0)
    assert budget.limits(2, seconds, 400).thresholds[0] > 10 * plain
    budget.observe(tokens=1.0, seconds=1.0)
    assert budget.limits(2, seconds, 400).thresholds[0] == plain


def test_promises_that_are_not_kept_are_trusted_less_and_forgiven_without_drafts() -> None:
    budget = TimeBudget()
    assert budget.trust == 1.0
    for _ in range(100):
        budget.verified(5.0, 6)
    assert budget.trust == 1.0
    for _ in range(200):
        budget.verified(5.0, 2)
    assert 0.4 < budget.trust < 0.5
    for _ in range(400):
        budget.verified(0.0, 0)
    assert budget.trust > 0.95


def test_drafts_that_pay_only_if_all_is_kept_are_left_out_where_less_is_trusted() -> None:
    trees = [TokenTree.from_parents([1, 2], [-1, 0], probs=[1.0, 0.5])] * 2
    seconds = np.array([1.0, 1.0, 1.0, 1.2, 1.4], dtype=np.float32)
    free = np.array([True, True])
    for trust, nodes in ((1.0, 2), (0.7, 1)):
        cut = cut_trees(trees, free, seconds, 4, trust=trust)
        assert [tree.num_nodes for tree in cut.trees] == [nodes, nodes]
    assert cut_trees(trees, free, seconds, 4, trust=0.9).tokens == pytest.approx(2 + 2 * 0.5 * 0.9)
