"""Verification is lossless: the output is the target's own, whatever was drafted, greedy and sampled."""

import itertools

import numpy as np
import pytest
from goose_strategies import TOKENS, replying, token_trees
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from goose.random import uniform
from goose.tree import IntArray, TokenTree
from goose.verify import Draw, VerifiedPath, walk, walk_batch


def target_after(prefix: tuple[int, ...]) -> int:
    """A greedy target: its token depends on all tokens before."""
    mixed = sum((token + 3) * (place + 2) for place, token in enumerate(prefix))
    return mixed % 11 % 5


def prefix_of(tree: TokenTree, node: int) -> tuple[int, ...]:
    return tuple(int(tree.token_ids[step]) for step in [0, *tree.path_to(node)])


def check_path(tree: TokenTree, path: VerifiedPath) -> None:
    nodes = path.accepted_nodes.tolist()
    assert len(path.token_ids) == len(nodes) + 1
    assert tree.parents[nodes].tolist() == [0, *nodes][: len(nodes)]
    assert tree.token_ids[nodes].tolist() == path.token_ids[:-1].tolist()
    last = nodes[-1] if nodes else 0
    assert path.token_ids[-1] not in tree.token_ids[tree.parents == last]


@given(token_trees())
def test_the_output_is_a_prefix_of_the_greedy_output(tree: TokenTree) -> None:
    path = walk(tree, lambda node: target_after(prefix_of(tree, node)))
    check_path(tree, path)
    plain: tuple[int, ...] = (int(tree.token_ids[0]),)
    for token in path.token_ids.tolist():
        assert token == target_after(plain)
        plain = (*plain, token)


@given(token_trees(), st.lists(TOKENS, min_size=24, max_size=24))
def test_any_accept_pattern_ends_where_no_child_agrees(tree: TokenTree, reply: list[int]) -> None:
    path = walk(tree, replying(tree, reply))
    check_path(tree, path)
    assert path.token_ids.tolist() == reply[: len(path.token_ids)]


@given(st.lists(token_trees(), max_size=6), st.integers(0, 2**32))
def test_a_batch_is_walked_as_its_trees_alone(trees: list[TokenTree], seed: int) -> None:
    def drawing_alone(number: int) -> Draw:
        return lambda node: int(uniform(seed, number * 1000 + node) * 5)

    def draw_together(numbers: IntArray, nodes: IntArray) -> IntArray:
        assert numbers.tolist() == sorted(set(numbers.tolist()))
        return (uniform(seed, numbers * 1000 + nodes) * 5).astype(np.int64)

    together = walk_batch(trees, draw_together)
    assert len(together) == len(trees)
    for number, (tree, path) in enumerate(zip(trees, together, strict=True)):
        alone = walk(tree, drawing_alone(number))
        assert path.accepted_nodes.tolist() == alone.accepted_nodes.tolist()
        assert path.token_ids.tolist() == alone.token_ids.tolist()


def conditional(prefix: tuple[int, ...]) -> NDArray[np.float64]:
    """A sampled target over three tokens: any distribution, fixed by the prefix."""
    weights = uniform(sum((token + 1) * 7**place for place, token in enumerate(prefix)), np.arange(3)) + 0.05
    total: float = weights.sum()
    return weights / total


# What is drafted differs in kind: nothing, a chain, a fan with twins, a wide tree.
DRAFTS = {
    "nothing": TokenTree.anchor_only(0),
    "chain": TokenTree.chain(0, [1, 2, 0], source=1),
    "twins": TokenTree.from_parents([0, 1, 1, 2, 0], [-1, 0, 0, 1, 2]),
    "wide": TokenTree.from_parents([0, 0, 1, 2, 0, 1, 2, 0, 1], [-1, 0, 0, 0, 1, 1, 2, 3, 3]),
}


@pytest.mark.parametrize("drafted", DRAFTS)
def test_sampled_output_is_distributed_as_without_drafts(drafted: str) -> None:
    """Three tokens of output over a vocabulary of three: all 27 outcomes against their exact probabilities.

    Chi-square with 26 degrees of freedom: 81.6 is exceeded with probability 1e-7 if verification is lossless.
    """
    num_samples, length = 20_000, 3
    tree = DRAFTS[drafted]
    counts = dict.fromkeys(itertools.product(range(3), repeat=length), 0)
    draws = uniform(np.arange(num_samples)[:, None], np.arange(length))
    cumulative: dict[tuple[int, ...], list[float]] = {}

    def token_after(prefix: tuple[int, ...], draw: float) -> int:
        if prefix not in cumulative:
            cumulative[prefix] = np.cumsum(conditional(prefix)).tolist()
        first, second, _ = cumulative[prefix]
        return int(draw >= first) + int(draw >= second)

    prefixes = [prefix_of(tree, node) for node in range(tree.num_nodes)]

    def drawing(sample: list[float]) -> Draw:
        # Output position t is the number of tokens behind the anchor; a draft as long as the output draws once more.
        return lambda node: token_after(prefixes[node], (*sample, 0.0)[len(prefixes[node]) - 1])

    for sample in draws.tolist():
        path = walk(tree, drawing(sample))
        output = (0, *path.token_ids.tolist()[:length])
        # What the step did not commit, plain decoding goes on with.
        while len(output) <= length:
            output = (*output, token_after(output, sample[len(output) - 1]))
        counts[output[1:]] += 1

    exact = {
        tokens: num_samples
        * float(np.prod([conditional((0, *tokens[:place]))[tokens[place]] for place in range(length)]))
        for tokens in counts
    }
    assert min(exact.values()) > 5
    assert sum((counts[tokens] - exact[tokens]) ** 2 / exact[tokens] for tokens in counts) < 81.6


@given(token_trees(), st.integers(0, 2**32))
def test_seeded_output_does_not_depend_on_the_draft(tree: TokenTree, seed: int) -> None:
    def token_after(prefix: tuple[int, ...]) -> int:
        # Output position t is the number of tokens behind the anchor.
        return int(uniform(seed, len(prefix) - 1) * 5 + target_after(prefix)) % 5

    plain: tuple[int, ...] = (int(tree.token_ids[0]),)
    path = walk(tree, lambda node: token_after(prefix_of(tree, node)))
    for token in path.token_ids.tolist():
        assert token == token_after(plain)
        plain = (*plain, token)
