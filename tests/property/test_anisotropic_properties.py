"""The theory behind `anisotropic`: the best tree is the likeliest candidates, and its expectation is what happens."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from goose.anisotropic.budget import NodeBudget, TreeLimits
from goose.anisotropic.drafter import Drafter
from goose.anisotropic.tree import MIN_PATH_PROBABILITY
from goose.anisotropic.weights import Weights
from goose.anisotropic.workspace import MAX_NODES, MAX_TREE_NODES, NUM_NODES, PATH_PROB, SELECTED
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.request import DraftRequest, TreeQuery
from goose.tree import TokenTree
from goose.verify import walk

BITS = np.arange(8, dtype=np.int64)
# A second-order Markov source of four tokens: the target of these tests. Certain, even and rare successors.
RNG = np.random.default_rng(5)
TARGET = RNG.dirichlet([0.25] * 4, size=(4, 4))


def written(length: int, rng: np.random.Generator) -> list[int]:
    text = [0, 1]
    while len(text) < length:
        text.append(int(rng.choice(4, p=TARGET[text[-2], text[-1]])))
    return text


def rows_of(name: str, text: list[int], first: int, last: int) -> Harvest:
    """The target's own distribution after the tokens first .. last - 1 of a text."""
    positions = np.arange(first, last)
    pairs = [(text[p - 1] if p else 0, text[p]) for p in positions]
    order = [np.argsort(-TARGET[pair], kind="stable") for pair in pairs]
    return Harvest(
        previous_ids=np.asarray([pair[0] for pair in pairs]),
        token_ids=np.asarray([pair[1] for pair in pairs]),
        top_ids=np.asarray(order),
        top_probs=np.asarray([TARGET[pair][ids] for pair, ids in zip(pairs, order, strict=True)], dtype=np.float32),
        origin=HarvestOrigin((name,), np.zeros_like(positions), positions),
    )


def limits(*, floor: int, threshold: float = 1.0, max_nodes: int = MAX_TREE_NODES, count: int = 1) -> TreeLimits:
    def each(value: int) -> NDArray[np.int64]:
        return np.full(count, value, dtype=np.int64)

    return TreeLimits(
        targets=each(floor), floors=each(floor), max_nodes=each(max_nodes), thresholds=np.full(count, threshold)
    )


def drafter_on(texts: list[list[int]]) -> Drafter:
    drafter = Drafter(Weights.prior(), max_positions=1 << 13, learning_rate=0.0)
    for number, text in enumerate(texts):
        name = str(number)
        drafter.start_request(
            DraftRequest(
                request_id=name, prompt_ids=np.asarray(text), stop_token_ids=frozenset(), cache_salt=None, budget=9
            )
        )
        drafter.observe([], rows_of(name, text, 0, len(text) - 1))
    return drafter


def proposed(drafter: Drafter, texts: list[list[int]], wanted: TreeLimits, max_nodes: int = 10_000) -> list[TokenTree]:
    queries = [TreeQuery(str(number), text[-1], 40) for number, text in enumerate(texts)]
    return drafter.propose(queries, wanted, max_nodes, BITS)


TEXTS = st.lists(st.integers(0, 3), min_size=4, max_size=60)


@given(text=TEXTS, num_nodes=st.integers(1, 40))
def test_no_candidate_left_out_is_likelier_than_one_taken(text: list[int], num_nodes: int) -> None:
    drafter = drafter_on([text])
    [tree] = proposed(drafter, [text], limits(floor=num_nodes))
    work = drafter.workspace
    queued = int(work.growth[0, NUM_NODES])
    assert queued < MAX_NODES
    path_probs, selected = work.probs[:queued, PATH_PROB], work.nodes[:queued, SELECTED] == 1
    taken, left_out = path_probs[selected], path_probs[~selected]
    assert tree.num_nodes == len(taken) == min(num_nodes, queued)
    np.testing.assert_allclose(np.sort(tree.path_probs()), np.sort(taken), rtol=1e-4)
    assert left_out.max(initial=0.0) <= taken.min() + 1e-12
    # The tree of one node more is the same tree and its likeliest candidate: nothing is gained by other choices.
    [larger] = proposed(drafter, [text], limits(floor=num_nodes + 1))
    assert larger.path_probs().sum() >= tree.path_probs().sum()
    assert larger.path_probs().min() <= tree.path_probs().min() + 1e-6


@given(text=TEXTS, num_nodes=st.integers(2, 5))
def test_the_tree_expects_as_much_as_the_best_of_all_trees(text: list[int], num_nodes: int) -> None:
    """Exhaustive search over the connected subsets of a large tree's nodes."""
    drafter = drafter_on([text])
    pool = proposed(drafter, [text], limits(floor=12))[0]
    [tree] = proposed(drafter, [text], limits(floor=num_nodes))
    gain = pool.path_probs()
    best = 0.0
    for chosen in itertools.combinations(range(1, pool.num_nodes), min(num_nodes, pool.num_nodes) - 1):
        if all(pool.parents[node] in (0, *chosen) for node in chosen):
            best = max(best, float(gain[[0, *chosen]].sum()))
    assert tree.path_probs().sum() == pytest.approx(best, rel=1e-5)


@given(texts=st.lists(TEXTS, min_size=2, max_size=5), spare=st.integers(0, 60))
def test_a_batch_that_is_too_large_keeps_its_likeliest_nodes(texts: list[list[int]], spare: int) -> None:
    drafter = drafter_on(texts)
    wanted = limits(floor=16, count=len(texts))
    whole = proposed(drafter, texts, wanted)
    cut = proposed(drafter, texts, wanted, max_nodes=len(texts) + spare)
    sizes = [tree.num_nodes for tree in cut]
    assert min(sizes) >= 1
    assert sum(sizes) == min(len(texts) + spare, sum(tree.num_nodes for tree in whole))
    for tree in cut:
        assert TokenTree.from_parents(tree.token_ids, tree.parents).depths.tolist() == tree.depths.tolist()
    drafted = np.sort(np.concatenate([tree.path_probs()[1:] for tree in whole]))[::-1]
    kept = np.sort(np.concatenate([tree.path_probs()[1:] for tree in cut]))[::-1]
    np.testing.assert_allclose(kept, drafted[: len(kept)], rtol=1e-6)


@given(text=TEXTS, threshold=st.floats(0.003, 0.9))
def test_a_threshold_takes_exactly_the_nodes_above_it(text: list[int], threshold: float) -> None:
    drafter = drafter_on([text])
    [tree] = proposed(drafter, [text], limits(floor=1, threshold=threshold))
    assert tree.path_probs()[1:].min(initial=1.0) >= threshold * (1 - 1e-6)
    [larger] = proposed(drafter, [text], limits(floor=1, threshold=MIN_PATH_PROBABILITY))
    if larger.num_nodes < MAX_TREE_NODES:
        assert tree.num_nodes == int((larger.path_probs() >= threshold).sum())


def drawn(text: list[int], tree: TokenTree, rng: np.random.Generator, node: int) -> int:
    below = [int(tree.token_ids[n]) for n in tree.path_to(node)]
    before = (text + below)[-2:]
    return int(rng.choice(4, p=TARGET[before[0], before[1]]))


def test_predictions_become_true_and_the_expected_length_with_them() -> None:
    """1,500 steps on a synthetic target, learning as it goes.

    What is predicted for the drafted nodes reached must be what happens, in every tenth of probability and in sum. The
    bounds are four standard deviations of the counts, and 0.03 for what is not learned yet: a false alarm has
    probability below 1e-3 (about a dozen comparisons at 6e-5 each), and the seed is fixed.
    """
    rng = np.random.default_rng(11)
    drafter = Drafter(Weights.prior(), max_positions=1 << 14, learning_rate=0.05)
    text = written(40, rng)
    drafter.start_request(
        DraftRequest(request_id="0", prompt_ids=np.asarray(text), stop_token_ids=frozenset(), cache_salt=None, budget=9)
    )
    drafter.observe([], rows_of("0", text, 0, len(text) - 1))
    # by tenth: nodes, sum of predictions, sum of variances, accepted
    counts = np.zeros((4, 10))
    expected, variance, accepted = 0.0, 0.0, 0
    for step in range(1500):
        [tree] = drafter.propose([TreeQuery("0", text[-1], 40)], limits(floor=12), 100, BITS)
        path = walk(tree, partial(drawn, list(text), tree, rng))
        if step >= 300:
            reached = {0, *path.accepted_nodes.tolist()}
            for node in range(1, tree.num_nodes):
                if int(tree.parents[node]) in reached:
                    prob = float(tree.probs[node])
                    hit = node in reached
                    counts[:, min(9, int(10 * prob))] += (1, prob, prob * (1 - prob), hit)
            expectation = float(tree.path_probs()[1:].sum())
            depth = np.arange(1, 41)
            at_least = np.array([tree.path_probs()[tree.depths == d].sum() for d in depth])
            expected += expectation
            # Var X = sum of (2 d - 1) P(X >= d) - (E X)^2
            variance += float(((2 * depth - 1) * at_least).sum()) - expectation**2
            accepted += len(path.accepted_nodes)
        outcome = TreeOutcome("0", tree, path.accepted_nodes, path.token_ids, int(path.token_ids[-1]))
        first = len(text) - 1
        text += path.token_ids.tolist()
        drafter.observe([outcome], rows_of("0", text, first, len(text) - 1))
    nodes, predicted, deviations, hits = counts
    assert nodes.sum() > 3000
    assert (np.abs(hits - predicted) <= 4 * np.sqrt(deviations) + 0.03 * nodes + 1).all()
    assert np.abs(hits - predicted).sum() / nodes.sum() <= 0.03
    assert abs(accepted - expected) <= 4 * np.sqrt(variance) + 0.03 * expected
    # And the model is no coward: of the target's entropy little is left over.
    assert accepted / 1200 > 1.0


def test_the_average_tree_becomes_the_budget() -> None:
    """Trees whose size answers to the threshold as those of a mixed batch do."""
    rng = np.random.default_rng(2)
    control = NodeBudget()
    budgets, taus = np.full(4, 16, dtype=np.int64), np.asarray([1.0, 2.0, 4.0, 8.0])
    sizes = []
    for _ in range(400):
        found = control.limits(budgets, taus, 10_000)
        more = rng.exponential(0.5, 4) / found.thresholds
        sizes.append(np.minimum(found.floors + np.rint(more), MAX_TREE_NODES).astype(np.int64))
        control.observe(found, sizes[-1])
    # The sum of all excess is the way of the threshold from its start, so its mean vanishes with the steps.
    assert np.mean(sizes[100:]) == pytest.approx(16, rel=0.03)
    # A reply that commits many tokens a step pays less for a node.
    assert found.thresholds.tolist() == pytest.approx((found.thresholds[0] / np.array([1, 1, 2, 4])).tolist())


def test_a_full_batch_lowers_everyones_target() -> None:
    found = NodeBudget().limits(np.asarray([1, 16, 60], dtype=np.int64), np.ones(3), 30)
    assert found.targets.tolist() == [1, 10, 10]
    assert found.floors.tolist() == [1, 9, 9]
    assert found.max_nodes.tolist() == [1, 28, 28]
