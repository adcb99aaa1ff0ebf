"""Acceptance tables merge in any order and any grouping, and survive the wire."""

import json

import numpy as np
from goose_strategies import TOKENS, replying, token_trees
from hypothesis import given
from hypothesis import strategies as st

from goose.calibration import AcceptanceTable
from goose.tree import TokenTree
from goose.verify import walk

NAMES = ("context", "transitions")


@st.composite
def tables(draw: st.DrawFn) -> AcceptanceTable:
    # The number of sources differs too: replicas of two versions report side by side.
    table = AcceptanceTable(NAMES[: draw(st.integers(0, len(NAMES)))])
    for _ in range(draw(st.integers(0, 3))):
        tree = draw(token_trees(max_nodes=8))
        reply = draw(st.lists(TOKENS, min_size=8, max_size=8))
        table.observe(tree, walk(tree, replying(tree, reply)).accepted_nodes)
    return table


@given(tables(), tables(), tables())
def test_merging_is_associative_and_commutative(a: AcceptanceTable, b: AcceptanceTable, c: AcceptanceTable) -> None:
    assert a.merge_max(b) == b.merge_max(a)
    assert a.merge_max(b).merge_max(c) == a.merge_max(b.merge_max(c))
    assert a.add(b) == b.add(a)
    assert a.add(b).add(c) == a.add(b.add(c))


@given(tables(), tables())
def test_maximum_is_idempotent_and_addition_has_a_zero(a: AcceptanceTable, b: AcceptanceTable) -> None:
    assert a.merge_max(a) == a
    assert a.merge_max(b).merge_max(b) == a.merge_max(b)
    assert a.add(AcceptanceTable()) == a


@given(tables(), tables())
def test_merging_leaves_both_tables_alone(a: AcceptanceTable, b: AcceptanceTable) -> None:
    before = a.snapshot(), b.snapshot()
    a.merge_max(b)
    a.add(b)
    assert (a.snapshot(), b.snapshot()) == before


@given(tables())
def test_a_snapshot_survives_the_wire(table: AcceptanceTable) -> None:
    assert AcceptanceTable.from_snapshot(json.loads(json.dumps(table.snapshot()))) == table


@given(st.lists(st.tuples(token_trees(max_nodes=12), st.lists(TOKENS, min_size=12, max_size=12)), max_size=4))
def test_counts_are_those_of_a_walk_over_all_nodes(steps: list[tuple[TokenTree, list[int]]]) -> None:
    table = AcceptanceTable(NAMES)
    expected = {name: [0, 0] for name in NAMES}
    for tree, reply in steps:
        accepted = walk(tree, replying(tree, reply)).accepted_nodes
        credited = table.observe(tree, accepted)
        path = {0, *accepted.tolist()}
        for number, name in enumerate(NAMES):
            own = [
                node
                for node in range(1, tree.num_nodes)
                if int(tree.parents[node]) in path and int(tree.sources[node]) >> number & 1
            ]
            counts = len(own), sum(node in path for node in own)
            assert credited.get(name, (0, 0)) == counts
            expected[name][0] += counts[0]
            expected[name][1] += counts[1]
    assert table.totals() == {name: tuple(counts) for name, counts in expected.items()}
    # Each earlier report is below the later one, so the maximum of all reports is the last.
    assert (table.accepted_per_position() <= table.attempted_per_position()).all()
    assert int(np.sum(table.accepted_per_position())) <= sum(tree.num_draft_nodes for tree, _ in steps)


@given(st.lists(st.tuples(token_trees(max_nodes=12), st.lists(TOKENS, min_size=12, max_size=12)), max_size=5))
def test_a_batch_counts_as_its_trees_do_one_by_one(steps: list[tuple[TokenTree, list[int]]]) -> None:
    trees = [tree for tree, _ in steps]
    accepted = [walk(tree, replying(tree, reply)).accepted_nodes for tree, reply in steps]
    together, apart = AcceptanceTable(NAMES), AcceptanceTable(NAMES)
    credited = together.observe_batch(trees, accepted)
    assert credited == [apart.observe(tree, nodes) for tree, nodes in zip(trees, accepted, strict=True)]
    assert together.snapshot() == apart.snapshot()
