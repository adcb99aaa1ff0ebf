"""The policy `goose` against reference decisions of the paper's published method: all of them equal."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from goose.observation import Harvest
from goose.policies.goose import GooseConstants, GoosePolicy
from goose.request import DraftRequest
from goose.sources.registry import SourceSet
from goose.tree import TokenTree

_SUCCESSORS = 10


def _policy(row: dict[str, Any]) -> GoosePolicy:
    """The policy in the state that a reference row describes, its one request named "r"."""
    sources = SourceSet(harvest_k=_SUCCESSORS)
    policy = GoosePolicy(sources, constants=GooseConstants(ema_start=row["spine_accept_ema"]))
    request = DraftRequest(
        request_id="r",
        prompt_ids=np.asarray(row["tokens"], dtype=np.int64),
        stop_token_ids=frozenset(),
        cache_salt=None,
        budget=row["budget"],
    )
    for name in policy.source_names:
        sources[name].start_request(request)
    policy.start_request(request)
    sources["transitions"].observe([], _harvest(row["transitions"]))
    return policy


def _harvest(rows: list[tuple[int | None, int, list[int], list[float]]]) -> Harvest:
    # Scores in double precision, as the file gives them: the reference rounds products of them.
    top_ids = np.full((len(rows), _SUCCESSORS), -1, dtype=np.int64)
    top_probs = np.zeros((len(rows), _SUCCESSORS), dtype=np.float64)
    for number, (_, _, ids, scores) in enumerate(rows):
        top_ids[number, : len(ids)] = ids[:_SUCCESSORS]
        top_probs[number, : len(scores)] = scores[:_SUCCESSORS]
    return Harvest(
        previous_ids=np.asarray([-1 if row[0] is None else row[0] for row in rows], dtype=np.int64),
        token_ids=np.asarray([row[1] for row in rows], dtype=np.int64),
        top_ids=top_ids,
        top_probs=top_probs,  # type: ignore[arg-type]
    )


def _paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The tree as its root-to-node paths, sorted: equal for equal trees, whatever their node order."""
    paths: list[tuple[int, ...]] = []
    for parent, token in zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return sorted(paths)


def _differences(row: dict[str, Any]) -> list[str]:
    policy = _policy(row)
    decision = policy.decide("r")
    found: list[str] = []
    for field, got in (("match", decision.match.token_ids), ("route", decision.route)):
        if got != row[field]:
            found.append(f"row {row['id']}: {field} is {got}, reference {row[field]}")
    if abs(decision.confidence - row["confidence"]) > 1e-6:
        found.append(f"row {row['id']}: confidence is {decision.confidence}, reference {row['confidence']}")
    if row["route"] == "tree" and decision.route == "tree":
        reference = TokenTree.from_parents(row["tree_tokens"], row["tree_parents"])
        spine = reference.token_ids[1 : row["spine_nodes"] + 1].tolist()
        if decision.chain != row["extended_match"]:
            found.append(f"row {row['id']}: chain is {decision.chain}, reference {row['extended_match']}")
        if decision.chain[: decision.num_spine] != spine:
            found.append(f"row {row['id']}: spine of {decision.num_spine}, reference {row['spine_nodes']}")
        if _paths(policy.tree("r")) != _paths(reference):
            found.append(f"row {row['id']}: tree differs from the reference")
    return found


def test_goose_trees(goose_trees_file: Path) -> None:
    rows = [json.loads(line) for line in goose_trees_file.read_text().splitlines()]
    assert rows
    assert [difference for row in rows for difference in _differences(row)] == []
