"""The batch's nodes by tokens per second: never worse than any other size, and trees stay trees."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from goose_strategies import token_trees
from hypothesis import given
from hypothesis import strategies as st

from goose.allocation import allocate, cut_trees, least_worth
from goose.tree import TokenTree

# Any durations, falling ones too.
DURATIONS = st.lists(st.floats(0.0078125, 10.0, width=32), min_size=40, max_size=60)


@given(trees=st.lists(token_trees(max_nodes=5), min_size=1, max_size=3), durations=DURATIONS)
def test_no_choice_of_nodes_expects_more_tokens_a_second(trees: list[TokenTree], durations: list[float]) -> None:
    """Exhaustive: every set of draft nodes of the batch that is closed upwards."""
    seconds = np.array(durations, dtype=np.float32)
    worths = np.concatenate([tree.path_probs() for tree in trees])
    is_anchor = np.concatenate([tree.parents == -1 for tree in trees])
    whole = allocate(worths, is_anchor, seconds, max_nodes=1000)
    assert whole.tokens == pytest.approx(float(worths[whole.kept].sum()))
    assert whole.seconds == seconds[whole.kept.sum()]
    nodes = [(i, node) for i, tree in enumerate(trees) for node in range(1, tree.num_nodes)]
    gains = {(i, node): trees[i].path_probs()[node] for i, node in nodes}
    best = 0.0
    for chosen in itertools.chain.from_iterable(itertools.combinations(nodes, n) for n in range(len(nodes) + 1)):
        if all(trees[i].parents[node] == 0 or (i, int(trees[i].parents[node])) in chosen for i, node in chosen):
            tokens = len(trees) + sum(gains[key] for key in chosen)
            best = max(best, tokens / float(seconds[len(trees) + len(chosen)]))
    assert whole.tokens / whole.seconds == pytest.approx(best, rel=1e-5)


@given(
    trees=st.lists(token_trees(max_nodes=24), min_size=1, max_size=6),
    durations=DURATIONS,
    free=st.lists(st.booleans(), min_size=6, max_size=6),
    max_nodes=st.integers(6, 200),
)
def test_cut_trees_are_trees_of_the_same_nodes(
    trees: list[TokenTree], durations: list[float], free: list[bool], max_nodes: int
) -> None:
    is_free = np.array(free[: len(trees)])
    cut = cut_trees(trees, is_free, np.array(durations, dtype=np.float32), max_nodes)
    required = sum(1 if is_free[i] else tree.num_nodes for i, tree in enumerate(trees))
    assert sum(tree.num_nodes for tree in cut.trees) <= max(required, min(max_nodes, len(durations) - 1))
    for whole, part, may_shrink in zip(trees, cut.trees, is_free, strict=True):
        if not may_shrink:
            assert part is whole
        again = TokenTree.from_parents(part.token_ids, part.parents)
        assert part.depths.tolist() == again.depths.tolist()
        assert part.num_nodes <= whole.num_nodes
        # Its nodes are the whole tree's, each with its own parent: the same paths, in the same order.
        paths = iter(described(whole))
        assert all(path in paths for path in described(part))


def described(tree: TokenTree) -> list[list[tuple[float, ...]]]:
    """For each node everything that is known of the nodes from the anchor down to it."""
    return [
        [(tree.token_ids[n], tree.depths[n], tree.sources[n], tree.probs[n]) for n in tree.path_to(node)]
        for node in range(tree.num_nodes)
    ]


def test_a_plateau_behind_a_dear_node_is_found() -> None:
    probs = np.array([1.0, 0.9, 0.85, 0.8, 0.75])
    anchor = np.array([True, False, False, False, False])
    # The second row is not worth its time, the third to fifth come for nothing.
    seconds = np.array([1.0, 1.0, 2.0, 2.0, 2.0, 2.0], dtype=np.float32)
    whole = allocate(probs, anchor, seconds, 5)
    assert whole.kept.all()
    assert whole.tokens == pytest.approx(4.3)
    assert whole.seconds == 2.0
    assert allocate(probs, anchor, seconds, 2).kept.tolist() == anchor.tolist()


def test_steep_costs_are_plain_decoding() -> None:
    trees = [TokenTree.chain(1, [2, 3, 4], source=1) for _ in range(4)]
    cut = cut_trees(trees, np.ones(4, np.bool_), np.arange(1, 20, dtype=np.float32) ** 3, 16)
    assert [tree.num_nodes for tree in cut.trees] == [1, 1, 1, 1]
    assert cut.tokens == 4


def test_a_budget_goes_to_the_sequence_that_uses_it() -> None:
    sure = TokenTree.from_parents([1, 2, 3, 4], [-1, 0, 1, 2], probs=[1, 0.9, 0.9, 0.9])
    doubtful = TokenTree.from_parents([1, 2, 3, 4], [-1, 0, 1, 2], probs=[1, 0.2, 0.9, 0.9])
    cut = cut_trees([doubtful, sure], np.ones(2, np.bool_), np.linspace(1, 2.5, 9, dtype=np.float32), 8)
    assert [tree.num_nodes for tree in cut.trees] == [1, 4]


@pytest.mark.parametrize(("num_sequences", "whole"), [(1, True), (16, False)])
def test_where_many_share_a_step_a_doubtful_run_is_begun_first(num_sequences: int, whole: bool) -> None:
    """20 rows of 0.02 s, lost with probability 0.6, against 0.4 of a step of 1.02 s, or of the 16th part of 1.32 s."""
    run = TokenTree.chain(1, range(20), source=1)
    run = replace(run, probs=np.array([1.0, 0.4, *[1.0] * 19], dtype=np.float32))
    trees = [run, *[TokenTree.anchor_only(1)] * (num_sequences - 1)]
    seconds = (1 + 0.02 * np.arange(100)).astype(np.float32)
    cut = cut_trees(trees, np.ones(num_sequences, np.bool_), seconds, 99)
    assert cut.trees[0].num_nodes == (21 if whole else 1)
    assert cut.tokens == pytest.approx(num_sequences + (8 if whole else 0))
    # Confirmed, it is worth its rows wherever it is.
    sure = replace(run, probs=np.ones(21, dtype=np.float32))
    assert cut_trees([sure, *trees[1:]], np.ones(num_sequences, np.bool_), seconds, 99).trees[0].num_nodes == 21


def test_what_is_not_built_could_not_have_paid() -> None:
    seconds = np.array([1, 1, 2, 2.2, 2.4, 3.9], dtype=np.float32)
    # From one row the cheapest further row is that of four: 1.4 s for three; half of that is still built.
    assert least_worth(seconds, 1, tokens_per_second=0.6) == pytest.approx(0.5 * 0.6 * 1.4 / 3)
    assert least_worth(np.ones(6, np.float32), 1, tokens_per_second=0.6) == 0.0
    assert least_worth(seconds, 5, tokens_per_second=0.6) == 1.0
