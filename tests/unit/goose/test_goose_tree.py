"""Trees as flat arrays: what is refused, and what is read off them."""

import math
from typing import Any

import numpy as np
import pytest

from goose.errors import InvalidTreeError
from goose.tree import TokenTree, TreeBatch

# 0 ── 1 ── 3
#  └── 2 ── 4
#       └── 5
FORK = TokenTree.from_parents([10, 11, 12, 13, 14, 15], [-1, 0, 0, 1, 2, 2])


def mask_rows(tree: TokenTree) -> list[str]:
    return ["".join("1" if seen else "0" for seen in row) for row in tree.ancestor_mask()]


def test_mask_of_a_chain_is_causal() -> None:
    assert mask_rows(TokenTree.chain(1, [2, 3, 4], source=1)) == ["1000", "1100", "1110", "1111"]


def test_mask_shows_ancestors_and_no_siblings() -> None:
    assert mask_rows(FORK) == ["100000", "110000", "101000", "110100", "101010", "101001"]


def test_depths_follow_the_parents() -> None:
    assert FORK.depths.tolist() == [0, 1, 1, 2, 2, 2]
    assert FORK.path_to(5) == [2, 5]
    assert FORK.path_to(0) == []


def test_a_chain_credits_its_source_on_every_draft_node() -> None:
    chain = TokenTree.chain(1, [2, 3], source=4)
    assert chain.parents.tolist() == [-1, 0, 1]
    assert chain.sources.tolist() == [0, 4, 4]


def test_the_anchor_alone_is_plain_decoding() -> None:
    tree = TokenTree.anchor_only(7)
    assert (tree.num_nodes, tree.num_draft_nodes, tree.token_ids.tolist()) == (1, 0, [7])


@pytest.mark.parametrize(
    ("tokens", "parents", "says"),
    [
        ([], [], "needs an anchor"),
        ([1, 2], [-1], "2 tokens, 1 parents"),
        ([1, 2], [0, 0], "node 0 is the anchor"),
        ([1, 2, 3], [-1, 2, 0], "node 1 has parent 2"),
        ([1, 2, 3], [-1, 1, 0], "node 1 has parent 1"),
        ([1, 2, 3], [-1, 0, -1], "node 2 has parent -1"),
    ],
)
def test_arrays_that_are_no_tree_are_refused(tokens: list[int], parents: list[int], says: str) -> None:
    with pytest.raises(InvalidTreeError, match=says):
        TokenTree.from_parents(tokens, parents)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sources": [0]}, "2 tokens, 1 sources, 2 probs"),
        ({"probs": [1.0, 0.5, 0.5]}, "2 tokens, 2 sources, 3 probs"),
        ({"probs": [1.0, math.nan]}, "node 1 has probability nan"),
    ],
)
def test_what_is_said_of_nodes_must_fit_them(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTreeError, match=says):
        TokenTree.from_parents([1, 2], [-1, 0], **fields)


def test_path_probability_is_the_product_along_the_path() -> None:
    tree = TokenTree.from_parents([0, 1, 2, 3], [-1, 0, 1, 0], probs=[1.0, 0.5, 0.5, 0.3])
    np.testing.assert_allclose(tree.path_probs(), [1.0, 0.5, 0.25, 0.3], rtol=1e-6)


def test_the_best_nodes_are_those_of_highest_path_probability() -> None:
    tree = TokenTree.from_parents([0, 1, 2, 3], [-1, 0, 1, 0], probs=[1.0, 0.5, 0.5, 0.3], sources=[0, 1, 1, 2])
    best = tree.best(3)
    assert best.token_ids.tolist() == [0, 1, 3]
    assert best.parents.tolist() == [-1, 0, 0]
    assert best.sources.tolist() == [0, 1, 2]
    assert tree.best(4) is tree
    assert tree.best(1).token_ids.tolist() == [0]


def test_within_a_depth_keeps_the_numbering_straight() -> None:
    tree = TokenTree.from_parents([0, 1, 2, 3, 4], [-1, 0, 1, 0, 3])
    assert tree.within(1).token_ids.tolist() == [0, 1, 3]
    assert tree.within(1).parents.tolist() == [-1, 0, 0]
    assert tree.within(2) is tree


def test_a_batch_counts_anchors_as_nodes() -> None:
    batch = TreeBatch((FORK, TokenTree.anchor_only(1)))
    assert batch.num_nodes == 7
    assert [tree.num_nodes for tree in batch] == [6, 1]
    assert (len(batch), batch[1].num_nodes) == (2, 1)
