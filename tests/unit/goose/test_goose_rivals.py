"""The policies `balanced`, `recycling` and `suffix`: which tree each rule makes of what is known."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from goose.errors import RequestStateError
from goose.observation import Harvest, TreeOutcome
from goose.policies.balanced import BalancedPolicy
from goose.policies.base import TreePolicy
from goose.policies.breadths import BreadthPlan, RankAcceptance
from goose.policies.chain import ChainPolicy
from goose.policies.goose import GoosePolicy
from goose.policies.recycling import RecyclingConstants, RecyclingPolicy, static_shape
from goose.policies.registry import POLICIES
from goose.policies.suffix import SuffixPolicy
from goose.request import DraftRequest, TreeQuery
from goose.sources.registry import SourceSet
from goose.speculator import Speculator
from goose.tree import TokenTree
from goose_ray.config import EngineConfig

CONTEXT, TRANSITIONS, POOL = 1, 2, 4
NOTHING = np.empty(0, dtype=np.int64)

Kind = type[BalancedPolicy] | type[ChainPolicy] | type[GoosePolicy] | type[RecyclingPolicy] | type[SuffixPolicy]


class Bench:
    """A policy with sources of its own."""

    def __init__(self, kind: Kind) -> None:
        self.sources = SourceSet(harvest_k=10)
        self.policy: TreePolicy = kind(self.sources)
        self.anchors: dict[str, int] = {}

    def start(
        self, name: str, prompt: Sequence[int], *, budget: int = 60, stop: Sequence[int] = (), salt: str | None = None
    ) -> None:
        request = DraftRequest(
            request_id=name,
            prompt_ids=np.asarray(prompt, dtype=np.int64),
            stop_token_ids=frozenset(stop),
            cache_salt=salt,
            budget=budget,
        )
        for source in self.policy.source_names:
            self.sources[source].start_request(request)
        self.policy.start_request(request)
        self.anchors[name] = prompt[-1]

    def commit(self, name: str, tokens: Sequence[int], tree: TokenTree | None = None, accepted: int = 0) -> None:
        """`accepted` tokens of the tree's path that the tokens follow, and the bonus token."""
        tree = tree or TokenTree.anchor_only(self.anchors[name])
        path: list[int] = []
        for token in tokens[:accepted]:
            above = path[-1] if path else 0
            children = np.flatnonzero((tree.parents == above) & (tree.token_ids == token))
            path.append(int(children[0]))
        outcome = TreeOutcome(name, tree, np.asarray(path, dtype=np.int64), np.asarray(tokens), tokens[-1])
        for source in self.policy.source_names:
            self.sources[source].observe([outcome], None)
        self.policy.observe([outcome], None)
        self.anchors[name] = tokens[-1]

    def stop(self, name: str) -> None:
        for source in self.policy.source_names:
            self.sources[source].stop_request(name)
        self.policy.stop_request(name)

    def learn(self, rows: dict[int, Sequence[int]]) -> None:
        """Successors of tokens, with falling scores: 0.5, 0.25, 0.125 …"""
        for token, ids in rows.items():
            scores = np.asarray([[0.5 ** (rank + 1) for rank in range(len(ids))]], dtype=np.float32)
            harvest = Harvest(np.asarray([-1]), np.asarray([token]), np.asarray([ids]), scores)
            self.sources["transitions"].observe([], harvest)

    def tree(self, name: str = "r", *, max_depth: int = 100, max_nodes: int = 1000) -> TokenTree:
        [tree] = self.policy.propose([TreeQuery(name, self.anchors[name], max_depth)], max_nodes)
        return tree


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.token_ids[tree.path_to(node)].tolist()) for node in range(1, tree.num_nodes)}


# suffix


def test_a_longer_match_is_worth_a_larger_draft() -> None:
    text = list(range(10, 80))
    sizes = []
    for matched in (1, 2, 4, 8, 16):
        made = Bench(SuffixPolicy)
        made.start("r", [*text, 1, *text[:matched]], budget=33)
        tree = made.tree()
        assert tree.token_ids[1:].tolist() == text[matched : matched + tree.num_draft_nodes]
        assert (tree.sources[1:] == CONTEXT).all()
        sizes.append(tree.num_draft_nodes)
    assert sizes == [4, 8, 16, 32, 32]


def test_continuations_share_the_draft_by_their_counts() -> None:
    made = Bench(SuffixPolicy)
    # After 1 2 follow 3 4 twice, 3 5 once and 6 once.
    made.start("r", [1, 2, 3, 4, 90, 1, 2, 3, 4, 91, 1, 2, 3, 5, 92, 1, 2, 6, 93, 1, 2], budget=33)
    tree = made.tree(max_depth=2)
    assert paths(tree) == {(3,), (3, 4), (3, 5), (6,), (6, 93)}
    probs = {tuple(tree.token_ids[tree.path_to(node)].tolist()): tree.probs[node] for node in range(1, tree.num_nodes)}
    np.testing.assert_allclose(
        [probs[3,], probs[3, 4], probs[3, 5], probs[6,], probs[6, 93]], [3 / 4, 2 / 3, 1 / 3, 1 / 4, 1], rtol=1e-6
    )


def test_past_outputs_are_drafted_from_and_never_across_salts() -> None:
    made = Bench(SuffixPolicy)
    output = list(range(20, 60))
    made.start("before", [1], salt="a")
    made.commit("before", output)
    made.stop("before")
    made.start("same", [5, *output[:9]], salt="a")
    made.start("other", [5, *output[:9]], salt="b")
    made.start("none", [5, *output[:9]])
    tree = made.tree("same")
    assert tree.token_ids[1:].tolist() == output[9:]
    assert (tree.sources[1:] == POOL).all()
    assert made.tree("other").num_nodes == made.tree("none").num_nodes == 1


def test_prompts_of_others_are_no_outputs() -> None:
    made = Bench(SuffixPolicy)
    made.start("before", list(range(20, 60)))
    made.commit("before", [1])
    made.stop("before")
    made.start("r", [20, 21, 22, 23])
    assert made.tree().num_nodes == 1


def test_of_equal_scores_the_requests_own_text_wins() -> None:
    made = Bench(SuffixPolicy)
    text = list(range(20, 31))
    made.start("before", [1])
    # Behind the same eight tokens as many as in the request's own text, and no more.
    made.commit("before", [*text[:8], *range(50, 61)])
    made.start("r", [*text, *text[:8]])
    assert made.tree().token_ids[1:].tolist() == [*text[8:], *text[:8]]


# recycling


def test_the_static_shape_is_that_of_the_highest_products() -> None:
    probs = (0.5, 0.2, 0.1)
    shape = static_shape(probs, 12)
    ranks: list[tuple[int, ...]] = [()]
    for parent, rank in shape:
        ranks.append((*ranks[parent], rank))
    every = [path for depth in range(1, 6) for path in product(range(3), repeat=depth)]
    worth = {path: float(np.prod([probs[rank] for rank in path])) for path in every}
    best = sorted(worth.values(), reverse=True)[:12]
    np.testing.assert_allclose(sorted((worth[path] for path in ranks[1:]), reverse=True), best)
    assert len(set(ranks)) == 13


def test_the_shape_is_filled_from_the_table_and_is_the_same_for_every_token() -> None:
    made = Bench(RecyclingPolicy)
    made.start("r", [100], budget=80)
    # Each token is followed by itself times ten and one of ten more.
    tokens = {100, *range(1000, 1010)}
    made.learn({token: list(range(1000, 1010)) for token in tokens})
    tree = made.tree()
    assert tree.num_nodes == 80
    shape = static_shape(RecyclingConstants().rank_probs, 79)
    assert tree.parents[1:].tolist() == [parent for parent, _ in shape]
    assert tree.token_ids[1:].tolist() == [1000 + rank for _, rank in shape]
    assert (tree.sources[1:] == TRANSITIONS).all()


def test_what_the_table_does_not_know_leaves_the_shape_smaller() -> None:
    made = Bench(RecyclingPolicy)
    made.start("r", [1], stop=[3])
    made.learn({1: [2, 3, 4], 4: [5], 3: [6]})
    assert paths(made.tree()) == {(2,), (4,), (4, 5)}
    assert made.tree(max_depth=1).depths.max() == 1


# balanced


def test_breadths_are_the_best_there_are() -> None:
    random = np.random.default_rng(0)
    for _ in range(40):
        probs = random.dirichlet(np.full(4, 0.5), size=3)[:, :3] * random.uniform(0.3, 1.0)
        num_nodes = int(random.integers(1, 12))
        plan = BreadthPlan(probs, num_nodes)
        chosen: list[int] = []
        width, left = 1, num_nodes
        while breadth := plan.breadth(len(chosen) + 1, width, left):
            chosen.append(breadth)
            width *= breadth
            left -= width
        best = max(expected_length(probs, breadths) for breadths in all_breadths(3, num_nodes))
        assert expected_length(probs, chosen) == pytest.approx(best)


def expected_length(probs: np.ndarray, breadths: Sequence[int]) -> float:
    covered = np.cumsum(probs, axis=1)
    accepted = [covered[min(depth, len(probs) - 1), breadth - 1] for depth, breadth in enumerate(breadths)]
    return float(np.cumprod(accepted).sum())


def all_breadths(widest: int, num_nodes: int, width: int = 1) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for breadth in range(1, widest + 1):
        if width * breadth <= num_nodes:
            rest = all_breadths(widest, num_nodes - width * breadth, width * breadth)
            found += [[breadth, *below] for below in rest]
    return found


def test_every_node_of_a_level_gets_as_many_children() -> None:
    made = Bench(BalancedPolicy)
    made.start("r", [7, 1, 2, 3, 4, 7, 1, 2, 3], budget=40)
    made.learn({token: range(20, 30) for token in [*range(10), *range(20, 30)]})
    tree = made.tree()
    assert 35 <= tree.num_nodes <= 40
    for depth in range(int(tree.depths.max())):
        children = {int(np.count_nonzero(tree.parents == node)) for node in np.flatnonzero(tree.depths == depth)}
        assert len(children) == 1, f"nodes at depth {depth} have {children} children"


def test_the_sources_are_ranked_together() -> None:
    made = Bench(BalancedPolicy)
    made.start("r", [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], budget=4)
    made.learn({3: [7, 8, 6]})
    tree = made.tree(max_depth=1)
    # 8: half of the occurrences and 0.25; 7: 0.5; 9: half of the occurrences, the older one.
    assert tree.token_ids[1] == 8
    assert dict(zip(tree.token_ids[1:].tolist(), tree.sources[1:].tolist(), strict=True)) == {
        8: CONTEXT | TRANSITIONS,
        9: CONTEXT,
        7: TRANSITIONS,
    }
    assert (np.diff(tree.probs[1:]) < 0).all()


@pytest.mark.parametrize(("right", "levels"), [(True, 15), (False, 4)])
def test_a_request_that_accepts_all_gets_a_chain_and_one_that_accepts_nothing_a_fan(right: bool, levels: int) -> None:
    made = Bench(BalancedPolicy)
    cycle = list(range(10, 20))
    made.start("r", cycle * 3, budget=16)
    made.learn({token: [*range(30, 36), (token - 9) % 10 + 10] for token in cycle})
    ahead = cycle * 100
    for step in range(40):
        tree = made.tree()
        if right:
            made.commit("r", ahead[: tree.depths.max() + 1], tree, accepted=int(tree.depths.max()))
            ahead = ahead[tree.depths.max() + 1 :]
        else:
            made.commit("r", [30 + step % 6], tree, accepted=0)
            made.commit("r", [cycle[step % 10]])
    depth = int(made.tree().depths.max())
    assert depth == levels if right else depth <= levels


def test_a_candidate_that_was_not_drafted_counts_too() -> None:
    acceptance = RankAcceptance()
    before = acceptance.prob(1, 3)
    for _ in range(200):
        acceptance.observe(1, 3)
    acceptance.plan(8)
    assert acceptance.prob(1, 3) > 0.8 > before
    # What is known of a depth is what the next starts from.
    assert acceptance.prob(2, 3) == pytest.approx(acceptance.prob(1, 3))


# all


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_to_a_requests_depth_and_the_batchs_nodes(policy: str) -> None:
    speculator = Speculator(policy=policy, budget=60)
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 6
    for name in ("a", "b"):
        speculator.start_request(name, text)
    for max_nodes, depths in ((2, (9, 9)), (13, (9, 0)), (500, (3, 200))):
        batch = speculator.propose(["a", "b"], max_draft_depths=depths, max_nodes=max_nodes)
        assert batch.num_nodes <= max_nodes
        assert all(tree.depths.max() <= depth for tree, depth in zip(batch, depths, strict=True))


@pytest.mark.parametrize("policy", ["balanced", "chain", "recycling", "suffix"])
@pytest.mark.parametrize("budget", [1, 2, 7, 33])
def test_no_tree_is_larger_than_its_budget(policy: str, budget: int) -> None:
    speculator = Speculator(policy=policy, budget=budget)
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 6
    speculator.start_request("r", text)
    ids = np.asarray([[1, 2, 3, 4]] * 8)
    scores = np.full((8, 4), 0.25, dtype=np.float32)
    speculator.observe([], Harvest(np.full(8, -1), np.arange(1, 9), ids, scores))
    tree = speculator.propose(["r"], max_draft_depths=[100], max_nodes=1000)[0]
    assert tree.num_nodes <= budget
    assert tree.num_nodes == 1 if budget == 1 else tree.num_nodes > 1


@pytest.mark.parametrize("kind", [BalancedPolicy, ChainPolicy, GoosePolicy, RecyclingPolicy, SuffixPolicy])
def test_misuse_names_the_request(kind: Kind) -> None:
    made = Bench(kind)
    made.start("r", [1])
    again = DraftRequest(
        request_id="r", prompt_ids=np.asarray([1]), stop_token_ids=frozenset(), cache_salt=None, budget=9
    )
    with pytest.raises(RequestStateError, match=f"'r' was started already in policy '{kind.name}'"):
        made.policy.start_request(again)
    made.policy.stop_request("r")
    with pytest.raises(RequestStateError, match="'r' is not started"):
        made.tree()
    with pytest.raises(RequestStateError, match="'r' is not started"):
        made.policy.stop_request("r")


def test_the_configuration_names_every_policy() -> None:
    description = EngineConfig.model_fields["policy"].description or ""
    assert [name for name in POLICIES if name not in description] == []
