"""Trees that grow in turn, and what they remember between steps, come out as if each were built alone from nothing."""

from collections.abc import Sequence

import numpy as np
import pytest

from goose.anisotropic.budget import TreeLimits
from goose.anisotropic.drafter import Drafter
from goose.anisotropic.successors import locate_pair, locate_token, locate_triple
from goose.anisotropic.weights import Weights
from goose.anisotropic.workspace import (
    BEFORE,
    NUM_NODES,
    PAIR_KEY,
    PAIR_PLACE,
    SELECTED,
    TOKEN,
    TOKEN_KEY,
    TOKEN_PLACE,
    TRIPLE_KEY,
    TRIPLE_PLACE,
    TWICE_BEFORE,
)
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.request import DraftRequest, TreeQuery
from goose.tree import TokenTree

BITS = np.arange(8, dtype=np.int64)


def start(drafter: Drafter, name: str, text: np.ndarray[tuple[int], np.dtype[np.int64]], salt: str | None) -> None:
    drafter.start_request(
        DraftRequest(request_id=name, prompt_ids=text, stop_token_ids=frozenset({1}), cache_salt=salt, budget=9)
    )
    positions = np.arange(len(text) - 1)
    rows = np.stack([text[1:], (text[1:] + 1) % 9], axis=1)
    probs = np.tile(np.array([0.6, 0.3], np.float32), (len(positions), 1))
    origin = HarvestOrigin((name,), np.zeros_like(positions), positions)
    drafter.observe([], Harvest(np.append(-1, text[:-2]), text[:-1], rows, probs, origin))


def propose(drafter: Drafter, names: Sequence[str], floors: Sequence[int]) -> list[TokenTree]:
    sizes = np.array(floors, dtype=np.int64)
    limits = TreeLimits(targets=sizes, floors=sizes, max_nodes=sizes + 5, thresholds=np.full(len(sizes), 0.2))
    return drafter.propose([TreeQuery(name, 0, 3 + len(name)) for name in names], limits, 10_000, BITS)


def parts(tree: TokenTree) -> list[list[float]]:
    return [tree.token_ids.tolist(), tree.parents.tolist(), tree.sources.tolist(), tree.probs.tolist()]


@pytest.mark.parametrize("num_trees", [1, 3, 4, 5, 9])
def test_a_tree_does_not_depend_on_those_that_grow_beside_it(num_trees: int) -> None:
    rng = np.random.default_rng(num_trees)
    drafter = Drafter(Weights.prior(), max_positions=1 << 12, learning_rate=0.1)
    names = ["r" * (1 + number) for number in range(num_trees)]
    for name in names:
        start(drafter, name, rng.integers(0, 9, 2 + 12 * len(name)), None)
    floors = rng.integers(1, 40, num_trees).tolist()
    together = propose(drafter, names, floors)
    alone = [propose(drafter, [name], [floor])[0] for name, floor in zip(names, floors, strict=True)]
    assert max(tree.num_nodes for tree in together) > 4
    assert list(map(parts, together)) == list(map(parts, alone))


def test_a_node_is_located_before_its_turn() -> None:
    drafter = Drafter(Weights.prior(), max_positions=1 << 12, learning_rate=0.1)
    start(drafter, "r", np.random.default_rng(0).integers(0, 9, 80), None)
    [tree] = propose(drafter, ["r"], [40])
    work, scope = drafter.workspace, int(drafter._slots.scopes[drafter._slot_of["r"]])
    selected = [node.tolist() for node in work.nodes[: work.growth[0, NUM_NODES]] if node[SELECTED]]
    assert len(selected) == tree.num_nodes >= 40
    for node in selected:
        a, b, c = node[TOKEN], node[BEFORE], node[TWICE_BEFORE]
        assert (node[TOKEN_PLACE], node[TOKEN_KEY]) == locate_token(a, scope)
        assert (node[PAIR_PLACE], node[PAIR_KEY]) == locate_pair(a, b, scope)
        assert (node[TRIPLE_PLACE], node[TRIPLE_KEY]) == locate_triple(a, b, c, scope)


def test_what_was_found_in_a_text_is_forgotten_when_any_text_changes() -> None:
    """Requests come, commit and go, in so little room that past texts give way to others, of other salts too."""

    def played(*, forgetful: bool) -> tuple[list[list[list[float]]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
        rng = np.random.default_rng(2)
        drafter = Drafter(Weights.prior(), max_positions=3000, learning_rate=0.1)
        words = [rng.integers(0, 9, 6) for _ in range(5)]
        live: list[str] = []
        seen: list[list[list[float]]] = []

        def text(num_words: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.concatenate([words[word] for word in rng.integers(0, 5, num_words)])

        for step in range(60):
            if len(live) < 5:
                live.append(str(step))
                start(drafter, live[-1], text(8), [None, "a", "b"][step % 3])
            trees = []
            # The second time nothing has changed, but for what is known of the place.
            for _ in range(2):
                if forgetful:
                    drafter._slots.found[:] = 0
                trees = propose(drafter, live, [12] * len(live))
                seen.extend(map(parts, trees))
            if step % 4 == 3:
                drafter.stop_request(live.pop(int(rng.integers(0, len(live)))))
                trees = propose(drafter, live, [12] * len(live))
                seen.extend(map(parts, trees))
            if forgetful:
                drafter._slots.found[:] = 0
            none = np.zeros(0, np.int64)
            outcomes = [
                TreeOutcome(name, tree, none, text(1), int(tree.token_ids[0]))
                for name, tree in zip(live, trees, strict=True)
            ]
            drafter.observe(outcomes, None)
        return seen, drafter.weights.values

    trees, weights = played(forgetful=False)
    expected, learned = played(forgetful=True)
    assert sum(len(tree[0]) for tree in trees) > 3 * len(trees)
    assert trees == expected
    assert (weights == learned).all()
