"""Any tree: its mask is ancestry, and cutting it leaves a tree."""

import numpy as np
from goose_strategies import token_trees
from hypothesis import given
from hypothesis import strategies as st

from goose.tree import TokenTree


def ancestors(tree: TokenTree, node: int) -> set[int]:
    """Walks up, node by node."""
    seen = {node}
    while tree.parents[node] >= 0:
        node = int(tree.parents[node])
        seen.add(node)
    return seen


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """Tokens from the anchor down to each node, in node order."""
    return [tuple(int(tree.token_ids[node]) for node in [0, *tree.path_to(end)]) for end in range(tree.num_nodes)]


@given(token_trees())
def test_the_mask_is_ancestry(tree: TokenTree) -> None:
    mask = tree.ancestor_mask()
    for node in range(tree.num_nodes):
        assert set(np.flatnonzero(mask[node]).tolist()) == ancestors(tree, node)


@given(token_trees())
def test_depth_is_the_number_of_proper_ancestors(tree: TokenTree) -> None:
    assert tree.depths.tolist() == [len(ancestors(tree, node)) - 1 for node in range(tree.num_nodes)]
    assert [len(tree.path_to(node)) for node in range(tree.num_nodes)] == tree.depths.tolist()


@given(token_trees(), st.integers(1, 30))
def test_the_best_nodes_are_a_tree_of_the_likeliest(tree: TokenTree, num_nodes: int) -> None:
    best = tree.best(num_nodes)
    assert best.num_nodes == min(num_nodes, tree.num_nodes)
    # Rebuilding it checks that every parent was kept and comes first.
    assert TokenTree.from_parents(best.token_ids, best.parents).depths.tolist() == best.depths.tolist()
    kept, remaining = paths(best), paths(tree)
    for path in kept:
        remaining.remove(path)
    likeliest = np.sort(tree.path_probs())[::-1][: best.num_nodes]
    np.testing.assert_allclose(np.sort(best.path_probs())[::-1], likeliest)


@given(token_trees(), st.integers(0, 8))
def test_within_a_depth_are_exactly_the_nodes_not_deeper(tree: TokenTree, max_depth: int) -> None:
    cut = tree.within(max_depth)
    assert TokenTree.from_parents(cut.token_ids, cut.parents).depths.tolist() == cut.depths.tolist()
    assert paths(cut) == [path for path in paths(tree) if len(path) - 1 <= max_depth]
