"""The theory of anisotropic trees, on the code that selects them: only what a node's candidates are is made up here.

Two sources of constant acceptance: one continues the spine with probability p_s, the other offers, at every node, a
fan of tokens with probability p_t < p_s each. The best tree grows deep where the spine is and wide elsewhere.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import goose.anisotropic.tree as production
from goose.anisotropic.archive import TextArchive
from goose.anisotropic.successors import new_successors
from goose.anisotropic.weights import Weights
from goose.anisotropic.workspace import (
    DEPTH,
    ID,
    MAX_CANDIDATES,
    NUM_NODES,
    PARENT,
    PROB,
    SELECTED,
    SOURCE,
    TOKEN,
    Memory,
    new_requests,
    new_workspace,
)
from goose.tree import TokenTree
from goose.verify import walk

SPINE, FAN = 1, 2
# (path of tokens below the anchor) -> [(token, source, probability)]
Offer = Callable[[tuple[int, ...]], list[tuple[int, int, float]]]

MEMORY = Memory(TextArchive(64).texts, new_successors(), Weights.prior().values.copy(), Weights.prior().squares.copy())


def built(offer: Offer, num_nodes: int, *, max_depth: int = 30) -> TokenTree:
    """The tree that production code selects when these are the candidates."""
    work, requests = new_workspace(), new_requests(1)

    def path_of(node: int) -> tuple[int, ...]:
        path: list[int] = []
        while node:
            path.append(int(work.nodes[node, TOKEN]))
            node = int(work.nodes[node, PARENT])
        return tuple(path[::-1])

    def expand(memory: object, requests: object, work: Any, slot: int, node: int, expansion: int) -> SimpleNamespace:
        candidates = offer(path_of(node))
        for place, (token, source, probability) in enumerate(candidates):
            work.candidates[place, ID], work.candidates[place, SOURCE] = token, source
            work.odds[place] = probability
        work.odds[MAX_CANDIDATES] = 1.0
        return SimpleNamespace(num_candidates=len(candidates))

    begin = getattr(production.begin_tree, "py_func", production.begin_tree)
    grow = getattr(production.grow_tree, "py_func", production.grow_tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(production, "expand", expand)
        # What is never worth a node is no matter of the theory.
        patch.setattr(production, "MIN_PATH_PROBABILITY", 0.0)
        begin(MEMORY, requests, work, 0, 0)
        while grow(MEMORY, requests, work, 0, 0, 1.0, num_nodes, num_nodes, max_depth, np.zeros(0, np.int64)):
            pass
    chosen = np.flatnonzero(work.nodes[: work.growth[0, NUM_NODES], SELECTED])
    places = {int(node): place for place, node in enumerate(chosen)}
    nodes = work.nodes[chosen]
    tree = TokenTree.from_parents(
        nodes[:, TOKEN].tolist(),
        [-1, *(places[int(parent)] for parent in nodes[1:, PARENT])],
        probs=work.probs[chosen, PROB],
    )
    assert tree.depths.tolist() == nodes[:, DEPTH].tolist()
    return tree


def two_sources(p_spine: float, p_fan: float, width: int) -> Offer:
    """Token 0 goes on with the spine; tokens from 1 on are the fan's."""

    def offer(path: tuple[int, ...]) -> list[tuple[int, int, float]]:
        spine = [(0, SPINE, p_spine)] if not any(path) else []
        return [*((token, FAN, p_fan) for token in range(1, width + 1)), *spine]

    return offer


def all_trees(offer: Offer, num_nodes: int) -> Iterator[list[float]]:
    """Path probabilities of the draft nodes of every tree of `num_nodes` nodes, each tree once.

    A tree grows by one node of its frontier at a time, and never by one that an earlier choice passed over.
    """

    def grow(frontier: list[tuple[tuple[int, ...], float]], taken: list[float]) -> Iterator[list[float]]:
        if len(taken) == num_nodes - 1:
            yield taken
            return
        for place, (path, probability) in enumerate(frontier):
            below = [((*path, token), probability * p) for token, _, p in offer(path)]
            yield from grow(frontier[place + 1 :] + below, [*taken, probability])

    return grow([((token,), p) for token, _, p in offer(())], [])


@given(
    p_spine=st.floats(0.1, 0.95),
    share=st.floats(0.05, 0.99),
    width=st.integers(1, 3),
    num_nodes=st.integers(2, 6),
)
def test_the_best_of_all_trees_is_the_one_that_is_built(
    p_spine: float, share: float, width: int, num_nodes: int
) -> None:
    p_fan = share * min(p_spine, (1 - p_spine) / width)
    offer = two_sources(p_spine, p_fan, width)
    best = max(all_trees(offer, num_nodes), key=sum)
    tree = built(offer, num_nodes)
    assert tree.num_nodes == num_nodes
    gains = np.sort(tree.path_probs()[1:])
    assert gains.sum() == pytest.approx(sum(best), rel=1e-6)
    # Not only as good: the same tree, but for siblings and nodes that are worth the same.
    np.testing.assert_allclose(gains, np.sort(best), rtol=1e-6)


def test_the_search_sees_every_tree_once() -> None:
    """Trees of n nodes in which every node has three children to choose from: C(3n, n) / (2n + 1)."""
    offer = two_sources(0.0, 0.1, 3)

    def three(path: tuple[int, ...]) -> list[tuple[int, int, float]]:
        return offer(path)[:3]

    assert [sum(1 for _ in all_trees(three, n)) for n in range(1, 6)] == [1, 3, 12, 55, 273]


@pytest.mark.parametrize(
    ("p_spine", "p_fan", "depth", "at_anchor"),
    [
        # a spine so sure that nothing else is worth a node
        (0.95, 0.01, 11, 1),
        # its sixth node is still likelier than the fan at the anchor, and its seventh than the fan below
        (0.7, 0.1, 7, 4),
        # hardly surer than the fan: one level after the other
        (0.26, 0.24, 2, 4),
    ],
)
def test_trees_are_deep_where_the_spine_is_sure_and_wide_where_it_is_not(
    p_spine: float, p_fan: float, depth: int, at_anchor: int
) -> None:
    tree = built(two_sources(p_spine, p_fan, 3), 12)
    on_spine = [n for n in range(1, 12) if not tree.token_ids[tree.path_to(n)].any()]
    assert len(on_spine) == depth
    assert int((tree.depths == 1).sum()) == at_anchor
    assert int(tree.depths.max()) == depth


@pytest.mark.parametrize(("p_spine", "p_fan"), [(0.9, 0.03), (0.6, 0.12), (0.35, 0.2)])
@pytest.mark.parametrize("num_nodes", [4, 16, 60])
def test_the_expected_accepted_length_is_what_happens(p_spine: float, p_fan: float, num_nodes: int) -> None:
    """20,000 walks of a target that follows the sources.

    The mean is within four standard errors of the expectation: a false alarm has probability 6e-5 a case, below 1e-3
    for all nine, and the seed is fixed.
    """
    rng = np.random.default_rng(29)
    tree = built(two_sources(p_spine, p_fan, 3), num_nodes)
    tokens = [0, 1, 2, 3, 9]

    def draw(node: int) -> int:
        if tree.token_ids[tree.path_to(node)].any():
            chances = [0.0, p_fan, p_fan, p_fan, 1 - 3 * p_fan]
        else:
            chances = [p_spine, p_fan, p_fan, p_fan, 1 - p_spine - 3 * p_fan]
        return int(rng.choice(tokens, p=chances))

    lengths = [len(walk(tree, draw).accepted_nodes) for _ in range(20_000)]
    expected = float(tree.path_probs()[1:].sum())
    assert abs(np.mean(lengths) - expected) <= 4 * np.std(lengths) / np.sqrt(len(lengths))


TABLES = st.integers(0, 2**32 - 1)


def random_sources(seed: int) -> Offer:
    """Each source offers up to three tokens at each node, some of them the same, with probabilities of its own."""

    def offer(path: tuple[int, ...]) -> list[tuple[int, int, float]]:
        rng = np.random.default_rng([seed, *path])
        tokens = rng.permutation(6)[: rng.integers(0, 5)]
        chances = rng.dirichlet(np.full(len(tokens) + 1, 0.7))[: len(tokens)]
        sources = rng.choice([SPINE, FAN, SPINE | FAN], len(tokens))
        return list(zip(tokens.tolist(), sources.tolist(), chances.tolist(), strict=True))

    return offer


@given(seed=TABLES, num_nodes=st.integers(1, 40), source=st.sampled_from([SPINE, FAN]))
def test_both_sources_never_expect_less_than_either_alone(seed: int, num_nodes: int, source: int) -> None:
    both = random_sources(seed)

    def alone(path: tuple[int, ...]) -> list[tuple[int, int, float]]:
        return [candidate for candidate in both(path) if candidate[1] & source]

    combined, single = (built(offer, num_nodes, max_depth=8).path_probs().sum() for offer in (both, alone))
    assert combined >= single * (1 - 1e-6)
