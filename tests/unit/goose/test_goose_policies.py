"""The policies beyond the reference trees: limits, stop tokens, the moving average, routes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from goose.observation import Harvest, TreeOutcome
from goose.policies.base import TreePolicy, fit, shares
from goose.policies.chain import ChainPolicy
from goose.policies.goose import GoosePolicy
from goose.request import DraftRequest, TreeQuery
from goose.sources.registry import SourceSet
from goose.tree import TokenTree

CONTEXT, TRANSITIONS = 1, 2


@dataclass
class Bench:
    """A policy with sources of its own and one request, "r"."""

    sources: SourceSet
    policy: TreePolicy
    anchor_id: int

    def tree(self, *, max_depth: int = 1000, max_nodes: int = 1000) -> TokenTree:
        [tree] = self.policy.propose([TreeQuery("r", self.anchor_id, max_depth)], max_nodes)
        return tree


def bench(
    kind: type[GoosePolicy] | type[ChainPolicy],
    tokens: Sequence[int],
    *,
    successors: dict[int, Sequence[int]] | None = None,
    budget: int = 60,
    stop: Iterable[int] = (),
) -> Bench:
    """`successors` are given falling scores: 0.5, 0.25, 0.125 …"""
    sources = SourceSet(harvest_k=10)
    policy = kind(sources)
    request = DraftRequest(
        request_id="r",
        prompt_ids=np.asarray(tokens, dtype=np.int64),
        stop_token_ids=frozenset(stop),
        cache_salt=None,
        budget=budget,
    )
    for name in policy.source_names:
        sources[name].start_request(request)
    policy.start_request(request)
    for token, ids in (successors or {}).items():
        row = Harvest(
            previous_ids=np.asarray([-1]),
            token_ids=np.asarray([token]),
            top_ids=np.asarray([ids]),
            top_probs=np.asarray([[0.5 ** (rank + 1) for rank in range(len(ids))]], dtype=np.float32),
        )
        sources["transitions"].observe([], row)
    return Bench(sources, policy, tokens[-1])


LOOP = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3]


def test_a_chain_is_ten_tokens_of_the_match() -> None:
    tree = bench(ChainPolicy, LOOP).tree()
    assert tree.token_ids.tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1]
    assert tree.sources.tolist() == [0] + [CONTEXT] * 10


@pytest.mark.parametrize(("limits", "nodes"), [({"max_depth": 3}, 4), ({"max_nodes": 5}, 5), ({"max_depth": 0}, 1)])
def test_a_chain_keeps_to_the_steps_limits(limits: dict[str, int], nodes: int) -> None:
    assert bench(ChainPolicy, LOOP).tree(**limits).num_nodes == nodes


def test_the_budget_caps_a_chain_anchor_included() -> None:
    assert bench(ChainPolicy, LOOP, budget=4).tree().num_nodes == 4
    assert bench(ChainPolicy, LOOP, budget=1).tree().num_nodes == 1


def goose_route(tokens: Sequence[int], successors: dict[int, Sequence[int]]) -> str:
    policy = bench(GoosePolicy, tokens, successors=successors).policy
    assert isinstance(policy, GoosePolicy)
    return policy.decide("r").route


def test_the_route_depends_on_the_table_first() -> None:
    assert goose_route([1, 2, 3, 4, 1, 2, 3], {3: [8]}) == "tree"
    assert goose_route([1, 2, 3], {3: [8]}) == "tree"
    assert goose_route([1, 2, 3, 4, 1, 2, 3], {4: [8]}) == "chain"
    assert goose_route([1, 2, 3], {4: [8]}) == "autoregressive"


def test_linear_verification_is_the_match_as_it_is() -> None:
    # Trusted enough to be extended, had it been a tree.
    tree = bench(GoosePolicy, LOOP).tree()
    assert tree.token_ids.tolist() == LOOP[2:]
    assert tree.depths.tolist() == list(range(13))


def test_nothing_known_is_plain_decoding() -> None:
    assert bench(GoosePolicy, [1, 2]).tree().num_nodes == 1


def test_a_token_of_both_sources_is_one_node_credited_to_both() -> None:
    tree = bench(GoosePolicy, [1, 2, 3, 4, 1, 2, 3], successors={3: [9, 4, 8]}).tree()
    at_anchor = {
        int(tree.token_ids[node]): int(tree.sources[node]) for node in np.flatnonzero(tree.parents == 0).tolist()
    }
    assert at_anchor == {4: CONTEXT | TRANSITIONS, 9: TRANSITIONS, 8: TRANSITIONS}


def test_stop_tokens_are_never_drafted() -> None:
    successors: dict[int, Sequence[int]] = {token: [0, 20, 21] for token in [*range(1, 13), 20, 21]}
    loop = [*LOOP[:8], 0, *LOOP[8:]]
    tree = bench(GoosePolicy, loop, successors=successors, stop=[0]).tree()
    assert 0 not in tree.token_ids.tolist()
    # The spine ends where the stop token would come, the branches do not.
    assert tree.token_ids[(tree.sources & CONTEXT) > 0].tolist() == [4, 5, 6, 7, 8]
    assert tree.num_nodes > 20


def test_a_trusted_chain_is_not_extended_past_a_stop_token() -> None:
    # Two occurrences agree, so the match is trusted. What it copies ends at the stop token; the end of that draft,
    # 2 3 4 5 6, occurs earlier still and goes on there.
    text = [2, 3, 4, 5, 6, 7, 8, *([70, 71, 1, 2, 3, 4, 5, 6, 0] * 2), 70, 71, 1, 2, 3]
    policy = bench(GoosePolicy, text, successors={3: [9]}, stop=[0]).policy
    assert isinstance(policy, GoosePolicy)
    decision = policy.decide("r")
    assert (decision.confidence, decision.chain) == (1.0, [4, 5, 6])


def test_a_tree_keeps_to_the_steps_limits() -> None:
    full = bench(GoosePolicy, LOOP, successors={token: [20, 21, 22] for token in range(30)})
    assert full.tree().num_nodes > 60
    assert full.tree(max_depth=2).depths.max() == 2
    assert full.tree(max_depth=0).num_nodes == 1
    cut = full.tree(max_nodes=30)
    assert cut.num_nodes == 30
    # Both the spine and the fan lose their least likely nodes.
    assert np.count_nonzero(cut.sources & CONTEXT) < np.count_nonzero(full.tree().sources & CONTEXT)
    assert np.count_nonzero(cut.sources & TRANSITIONS) > 0


def spine_outcome(tree: TokenTree, accepted: int) -> TreeOutcome:
    spine = np.flatnonzero(tree.sources & CONTEXT)[:accepted]
    return TreeOutcome("r", tree, spine, np.append(tree.token_ids[spine], 99), 99)


def test_the_moving_average_follows_the_spines_acceptance() -> None:
    policy = bench(GoosePolicy, [1, 2, 3, *range(20, 40), 1, 2, 3], successors={3: [9]}).policy
    assert isinstance(policy, GoosePolicy)
    tree = policy.tree("r")
    spine = int(np.count_nonzero(tree.sources & CONTEXT))
    averages = [policy.spine_accept_ema("r")]
    for accepted in (spine, 0, 0, spine):
        policy.observe([spine_outcome(tree, accepted)], None)
        averages.append(policy.spine_accept_ema("r"))
    np.testing.assert_allclose(averages, [0.5, 0.65, 0.455, 0.3185, 0.52295])


def test_a_tree_without_a_spine_leaves_the_moving_average() -> None:
    policy = bench(GoosePolicy, [1, 2, 3], successors={3: [9]}).policy
    assert isinstance(policy, GoosePolicy)
    tree = policy.tree("r")
    policy.observe([TreeOutcome("r", tree, np.asarray([1]), np.asarray([9, 1]), 1)], None)
    assert policy.spine_accept_ema("r") == 0.5


def test_a_poor_spine_gets_a_smaller_share() -> None:
    made = bench(GoosePolicy, [*range(1, 40), 1, 2, 3], successors={3: [60, 61, 62]})
    policy = made.policy
    assert isinstance(policy, GoosePolicy)
    before = policy.decide("r")
    for _ in range(8):
        policy.observe([spine_outcome(policy.tree("r"), 0)], None)
    after = policy.decide("r")
    assert policy.spine_accept_ema("r") < 0.2
    assert after.chain == before.chain
    assert after.num_spine < before.num_spine
    assert after.num_spine + after.num_branch == before.num_spine + before.num_branch


def test_shares_are_max_min_fair() -> None:
    assert shares(np.asarray([3, 50, 50]), 33).tolist() == [3, 15, 15]
    assert shares(np.asarray([50, 1, 50]), 22).tolist() == [10, 1, 11]
    assert shares(np.asarray([5, 5]), 100).tolist() == [5, 5]
    assert shares(np.asarray([9, 9, 9]), 3).tolist() == [1, 1, 1]


def test_fitting_cuts_the_large_trees_alone() -> None:
    small, large = TokenTree.chain(0, [1, 2], source=1), TokenTree.chain(0, list(range(1, 50)), source=1)
    assert [tree.num_nodes for tree in fit([small, large], 20)] == [3, 17]
    assert fit([small, large], 53) == [small, large]


def test_a_budget_of_one_is_plain_decoding_for_goose_too() -> None:
    assert bench(GoosePolicy, [1, 2, 3], successors={3: [8]}, budget=2).tree().num_nodes > 1
    assert bench(GoosePolicy, [1, 2, 3], successors={3: [8]}, budget=1).tree().num_nodes == 1
