"""Counts over reached nodes, and what a snapshot must look like."""

import json
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from goose import attempts
from goose.calibration import DEPTH_EDGES, RANK_EDGES, AcceptanceTable
from goose.errors import InvalidSnapshotError
from goose.tree import IntArray, TokenTree

# 0 ── 1 context ── 2 context ── 3 context
#  ├── 4 transitions
#  └── 5 both ── 6 transitions
TREE = TokenTree.from_parents([0, 1, 2, 3, 4, 5, 6], [-1, 0, 1, 2, 0, 0, 5], sources=[0, 1, 1, 1, 2, 3, 2])


def observed(*accepted: list[int]) -> AcceptanceTable:
    table = AcceptanceTable(("context", "transitions"))
    for nodes in accepted:
        table.observe(TREE, np.asarray(nodes, dtype=np.int64))
    return table


def test_only_reached_nodes_are_attempts() -> None:
    # Nothing accepted: only the children of the anchor were tried.
    table = AcceptanceTable(("context", "transitions"))
    assert table.observe(TREE, np.empty(0, dtype=np.int64)) == {"context": (2, 0), "transitions": (2, 0)}


def test_a_node_of_two_sources_credits_both() -> None:
    table = AcceptanceTable(("context", "transitions"))
    assert table.observe(TREE, np.asarray([5])) == {"context": (2, 1), "transitions": (3, 1)}
    assert table.totals() == {"context": (2, 1), "transitions": (3, 1)}


def test_an_accepted_path_reaches_its_children() -> None:
    table = AcceptanceTable(("context", "transitions"))
    assert table.observe(TREE, np.asarray([1, 2])) == {"context": (4, 2), "transitions": (2, 0)}


def test_nothing_drafted_counts_nothing() -> None:
    table = AcceptanceTable(("context",))
    assert table.observe(TokenTree.anchor_only(1), np.empty(0, dtype=np.int64)) == {}
    assert table == AcceptanceTable()


def test_buckets_are_depth_and_rank_among_siblings_of_the_source() -> None:
    counts = observed([1, 2]).counts("context")
    by_depth = counts.sum(axis=2)
    # depth 1: nodes 1 and 5; depth 2: node 2; depth 3: node 3
    assert by_depth[0][:4].tolist() == [2, 1, 1, 0]
    assert by_depth[1][:4].tolist() == [1, 1, 0, 0]
    # Node 5 is the second of the context's nodes at the anchor, node 4 the first of the transitions'.
    assert counts[0, 0, :3].tolist() == [1, 1, 0]
    assert observed([]).counts("transitions")[0, 0, :3].tolist() == [1, 1, 0]


def test_far_nodes_fall_into_the_last_bucket() -> None:
    table = AcceptanceTable(("context",))
    chain = TokenTree.chain(0, [1] * 300, source=1)
    table.observe(chain, np.arange(1, 301))
    assert table.counts("context")[1, -1, 0] == 300 - DEPTH_EDGES[-1] + 1
    assert table.accepted_per_position().sum() == 300
    assert table.accepted_per_position()[:2].tolist() == [1, 1]
    fan = TokenTree.from_parents([0] + [1] * 20, [-1] + [0] * 20, sources=[0] + [1] * 20)
    wide = AcceptanceTable(("context",))
    wide.observe(fan, np.empty(0, dtype=np.int64))
    assert wide.counts("context")[0, 0].tolist() == [1, 1, 1, 2, 3, 12]
    assert len(RANK_EDGES) == 6


def test_positions_count_steps_that_reached_them_and_accepted_tokens() -> None:
    table = observed([1, 2], [])
    assert table.attempted_per_position()[:4].tolist() == [2, 1, 1, 0]
    assert table.accepted_per_position()[:4].tolist() == [1, 1, 0, 0]


def test_a_snapshot_survives_json() -> None:
    table = observed([1, 2], [5])
    again = AcceptanceTable.from_snapshot(json.loads(json.dumps(table.snapshot())))
    assert again == table
    assert again.totals() == {"context": (6, 3), "transitions": (5, 1)}


def test_a_copy_stands_still() -> None:
    table = observed([1])
    copy = table.copy()
    table.observe(TREE, np.asarray([1]))
    assert copy == observed([1])
    assert copy != table


def test_later_reports_of_an_incarnation_replace_earlier_ones() -> None:
    early, late = observed([1]), observed([1], [5])
    assert early.merge_max(late) == late == late.merge_max(early)


def test_incarnations_add_up() -> None:
    assert observed([1]).add(observed([5])) == observed([1], [5])


def test_tables_of_different_sources_merge_by_name() -> None:
    other = AcceptanceTable(("suffix",))
    other.observe(TREE, np.empty(0, dtype=np.int64))
    merged = observed([]).add(other)
    assert merged.totals() == {"context": (2, 0), "transitions": (2, 0), "suffix": (2, 0)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"depth_edges": [1, 2]}, "depth_edges must be"),
        ({"rank_edges": None}, "rank_edges must be"),
        ({"positions": [1, 2]}, "positions must be"),
        ({"positions": None}, "positions must be"),
        ({"sources": [1]}, "sources must map"),
        ({"sources": {"context": [[1]]}}, r"sources\.context must be"),
        ({"sources": {"context": [[1], [2, 3]]}}, r"sources\.context must be"),
    ],
)
def test_what_is_no_snapshot_is_refused_naming_the_field(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSnapshotError, match=says):
        AcceptanceTable.from_snapshot({**observed([1]).snapshot(), **change})


@pytest.mark.parametrize("value", [-1, 0.5, True, 2**70])
def test_counts_are_whole_and_not_negative(value: float) -> None:
    snapshot = observed([1]).snapshot()
    snapshot["sources"]["context"] = np.full((2, len(DEPTH_EDGES), len(RANK_EDGES)), value, dtype=object).tolist()
    with pytest.raises(InvalidSnapshotError, match=r"sources\.context"):
        AcceptanceTable.from_snapshot(snapshot)


def test_a_node_behind_two_rejections_of_its_source_ranks_third() -> None:
    # 0 ── 1 context ── 2 context
    #  ├── 3 context, 4 transitions, 5 context: children stand between those of others
    tree = TokenTree.from_parents([0, 1, 2, 3, 4, 5], [-1, 0, 1, 0, 0, 0], sources=[0, 1, 1, 1, 2, 1])
    table = AcceptanceTable(("context", "transitions"))
    table.observe(tree, np.asarray([1]))
    assert table.counts("context")[0, 0, :4].tolist() == [1, 1, 1, 0]
    assert table.counts("context")[0, 1, :4].tolist() == [1, 0, 0, 0]
    assert table.counts("transitions")[0, 0, :4].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("parents", "depths", "accepted"),
    [
        ([-1, 0, 2], [0, 1, 2], []),
        ([-1, -2, 1], [0, 1, 2], []),
        ([-1, 0, 1], [0, 0, 1], []),
        ([-1, 0, 1], [0, 1, 2], [3]),
        ([-1, 0, 1], [0, 1, 2], [-1]),
        ([-1, 0, 1], [0, 1, 2], [0]),
        ([-1, 0], [0, 1, 2], []),
        ([], [], []),
    ],
)
def test_what_is_no_tree_is_refused_and_counts_nothing(
    parents: list[int], depths: list[int], accepted: list[int]
) -> None:
    def numbers(values: list[int]) -> IntArray:
        return np.asarray(values, dtype=np.int64)

    size = len(parents)
    tree = TokenTree(
        numbers([7] * size), numbers(parents), numbers(depths), numbers([1] * size), np.ones(size, np.float32)
    )
    table = AcceptanceTable(("context",))
    with pytest.raises(ValueError, match=r"no tree|differ in length"):
        table.observe_batch([TREE, tree], [numbers([1]), numbers(accepted)])
    assert table == AcceptanceTable()


def test_counts_are_the_same_without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(attempts._count, FunctionType):
        pytest.skip("there is nothing to compile with")
    rng = np.random.default_rng(5)
    trees = [
        TokenTree.from_parents(
            range(size),
            [-1, *(int(rng.integers(0, node)) for node in range(1, size))],
            sources=rng.integers(0, 4, size),
        )
        for size in range(1, 60)
    ]
    paths = [np.asarray(tree.path_to(int(rng.integers(0, tree.num_nodes))), dtype=np.int64) for tree in trees]
    compiled, plain = AcceptanceTable(("context", "transitions")), AcceptanceTable(("context", "transitions"))
    by_tree = compiled.observe_batch(trees, paths)
    for name in ("_count", "_bucket"):
        monkeypatch.setattr(attempts, name, getattr(attempts, name).py_func)
    assert plain.observe_batch(trees, paths) == by_tree
    assert plain == compiled
