"""The walk down one tree and down many."""

import numpy as np
import pytest

from goose.tree import IntArray, TokenTree
from goose.verify import walk, walk_batch

# 0 ── 1:11 ── 3:13
#  └── 2:12 ── 4:13
FORK = TokenTree.from_parents([10, 11, 12, 13, 13], [-1, 0, 0, 1, 2])


def test_the_walk_follows_the_child_that_was_drawn() -> None:
    path = walk(FORK, {0: 12, 2: 13, 4: 99}.__getitem__)
    assert path.accepted_nodes.tolist() == [2, 4]
    assert path.token_ids.tolist() == [12, 13, 99]


def test_a_miss_at_the_anchor_gives_the_bonus_token_alone() -> None:
    path = walk(FORK, {0: 13}.__getitem__)
    assert path.accepted_nodes.tolist() == []
    assert path.token_ids.tolist() == [13]


def test_each_node_of_the_path_is_drawn_once_and_no_other() -> None:
    asked: list[int] = []

    def draw(node: int) -> int:
        asked.append(node)
        return {0: 11, 1: 13, 3: 0}[node]

    walk(FORK, draw)
    assert asked == [0, 1, 3]


def test_of_equal_children_the_first_is_followed() -> None:
    # 0 ── 1:5 ── 3:6
    #  └── 2:5 ── 4:7
    twins = TokenTree.from_parents([0, 5, 5, 6, 7], [-1, 0, 0, 1, 2])
    assert walk(twins, {0: 5, 1: 7}.__getitem__).accepted_nodes.tolist() == [1]
    [path] = walk_batch([twins], lambda _, nodes: np.asarray([{0: 5, 1: 7}[int(nodes[0])]]))
    assert path.accepted_nodes.tolist() == [1]


def test_the_batched_walk_asks_once_a_level_for_those_still_walking() -> None:
    chain = TokenTree.chain(0, [1, 2, 3], source=1)
    calls: list[tuple[list[int], list[int]]] = []

    def draw(trees: IntArray, nodes: IntArray) -> IntArray:
        calls.append((trees.tolist(), nodes.tolist()))
        # Tree 0 misses at once, tree 1 after one token, tree 2 never.
        return np.asarray([node + 1 if node < tree or tree == 2 else 50 for tree, node in zip(*calls[-1], strict=True)])

    paths = walk_batch([chain, chain, chain], draw)
    assert calls == [([0, 1, 2], [0, 0, 0]), ([1, 2], [1, 1]), ([2], [2]), ([2], [3])]
    assert [path.token_ids.tolist() for path in paths] == [[50], [1, 50], [1, 2, 3, 4]]
    assert [path.accepted_nodes.tolist() for path in paths] == [[], [1], [1, 2, 3]]


def test_no_trees_are_no_paths() -> None:
    def draw(trees: IntArray, nodes: IntArray) -> IntArray:
        raise AssertionError("nothing to draw")

    assert walk_batch([], draw) == []


def test_a_draw_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="for 1 sequences"):
        walk_batch([FORK], lambda trees, nodes: np.asarray([1, 2]))
