"""The policy `anisotropic` on small hand-made texts: what it finds, shares, forgets and refuses."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from goose.anisotropic.successors import new_successors
from goose.errors import RequestStateError
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.policies.anisotropic import AnisotropicConstants, AnisotropicPolicy
from goose.request import DraftRequest, TreeQuery
from goose.sources.registry import SourceSet
from goose.tree import TokenTree
from goose.verify import walk

SOURCES = SourceSet(harvest_k=10)
CONTEXT, TRANSITIONS, POOL = (SOURCES.bit(name) for name in ("context", "transitions", "pool"))


class Session:
    """One policy and the texts of its requests."""

    def __init__(self, *, max_positions: int = 1 << 14, learning_rate: float = 0.05) -> None:
        constants = AnisotropicConstants(max_positions=max_positions, learning_rate=learning_rate)
        self.policy = AnisotropicPolicy(SOURCES, constants=constants)
        self.texts: dict[str, list[int]] = {}

    def start(
        self, name: str, prompt: Sequence[int], *, salt: str | None = None, stops: Sequence[int] = (), budget: int = 20
    ) -> None:
        self.policy.start_request(
            DraftRequest(
                request_id=name,
                prompt_ids=np.asarray(prompt),
                stop_token_ids=frozenset(stops),
                cache_salt=salt,
                budget=budget,
            )
        )
        self.texts[name] = list(prompt)

    def trees(self, *names: str, max_depth: int = 50, max_nodes: int = 1000) -> list[TokenTree]:
        queries = [TreeQuery(name, self.texts[name][-1], max_depth) for name in names]
        return self.policy.propose(queries, max_nodes)

    def tree(self, name: str, max_depth: int = 50) -> TokenTree:
        return self.trees(name, max_depth=max_depth)[0]

    def write(self, name: str, reply: Sequence[int], *, rows: bool = False) -> int:
        """Verifies trees until the whole reply is committed; returns the steps. `rows`: the target's rows are told."""
        left, steps = list(reply), 0
        while left:
            tree = self.tree(name, max_depth=len(left) - 1)
            path = walk(tree, partial(_token_at, left, tree))
            outcome = TreeOutcome(name, tree, path.accepted_nodes, path.token_ids, int(path.token_ids[-1]))
            first = len(self.texts[name]) - 1
            self.texts[name] += path.token_ids.tolist()
            self.policy.observe([outcome], self.rows_from(name, first) if rows else None)
            left = left[len(path.token_ids) :]
            steps += 1
        return steps

    def rows_from(self, name: str, first: int) -> Harvest:
        """At every position from `first` on whose successor is known, the target was rather certain of it."""
        text = self.texts[name]
        positions = np.arange(first, len(text) - 1)
        return Harvest(
            previous_ids=np.asarray([text[p - 1] if p else -1 for p in positions]),
            token_ids=np.asarray([text[p] for p in positions]),
            top_ids=np.asarray([[text[p + 1], 7777] for p in positions]),
            top_probs=np.tile(np.asarray([0.7, 0.25], dtype=np.float32), (len(positions), 1)),
            origin=HarvestOrigin((name,), np.zeros_like(positions), positions),
        )


def _token_at(reply: list[int], tree: TokenTree, node: int) -> int:
    return reply[int(tree.depths[node])]


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.token_ids[tree.path_to(node)].tolist()) for node in range(1, tree.num_nodes)}


PHRASE = [11, 12, 13, 14, 15, 16, 17, 18]


def test_a_copied_phrase_is_drafted_from_the_context() -> None:
    session = Session()
    session.start("r", [*PHRASE, 1, 2, *PHRASE[:5]])
    tree = session.tree("r")
    assert (16, 17, 18, 1, 2) in paths(tree)
    assert set(tree.sources[1:].tolist()) == {CONTEXT}


def test_a_loop_drafts_itself_beyond_the_end_of_the_text() -> None:
    session = Session()
    session.start("r", [5, 6, 7] * 8)
    # The only text after the anchor is the draft itself.
    assert session.tree("r").depths.max() > 3


def test_rows_are_drafted_and_agreement_is_credited_to_both() -> None:
    session = Session()
    session.start("r", [*PHRASE, 1, 2, *PHRASE[:4]], budget=100)
    session.policy.observe([], session.rows_from("r", 0))
    tree = session.tree("r")
    first = {int(tree.token_ids[n]): int(tree.sources[n]) for n in range(1, tree.num_nodes) if tree.depths[n] == 1}
    assert first[15] == CONTEXT | TRANSITIONS
    assert first[7777] == TRANSITIONS


def test_a_row_is_used_where_the_text_has_no_match() -> None:
    session = Session()
    session.start("a", [1, 2, 3])
    session.policy.observe([], session.rows_from("a", 0))
    session.start("b", [9, 2])
    assert (3,) in paths(session.tree("b"))


def test_outputs_of_others_are_pooled_but_prompts_are_not() -> None:
    session = Session()
    session.start("writer", [40, 41, 42, 43, 44, 45, 46])
    session.write("writer", PHRASE)
    session.start("reader", [3, *PHRASE[:4]])
    tree = session.tree("reader")
    assert (15, 16, 17) in paths(tree)
    assert set(tree.sources[1:].tolist()) == {POOL}
    session.start("prompt reader", [3, 40, 41, 42, 43])
    assert session.tree("prompt reader").num_nodes == 1


@pytest.mark.parametrize("finished", [False, True])
def test_the_pool_outlives_its_request(finished: bool) -> None:
    session = Session()
    session.start("writer", [40, 41])
    session.write("writer", PHRASE)
    if finished:
        session.policy.stop_request("writer")
    session.start("reader", [3, *PHRASE[:4]])
    assert (15, 16, 17) in paths(session.tree("reader"))


@pytest.mark.parametrize(("writer", "reader"), [("one", "two"), ("one", None), (None, "one")])
def test_nothing_crosses_from_one_salt_to_another(writer: str | None, reader: str | None) -> None:
    session = Session()
    session.start("writer", [40, 41], salt=writer)
    session.write("writer", PHRASE, rows=True)
    session.start("reader", [3, *PHRASE[:4]], salt=reader)
    assert session.tree("reader").num_nodes == 1
    session.policy.stop_request("writer")
    session.start("late reader", [3, *PHRASE[:4]], salt=reader)
    assert session.tree("late reader").num_nodes == 1
    session.start("same", [3, *PHRASE[:4]], salt=writer)
    assert (15, 16, 17) in paths(session.tree("same"))


def test_a_row_of_unknown_origin_is_nobodys_while_there_are_salts() -> None:
    row = Harvest(np.asarray([-1]), np.asarray([3]), np.asarray([[8]]), np.asarray([[0.9]], dtype=np.float32))
    for salt, known in ((None, True), ("one", False)):
        session = Session()
        session.start("r", [5, 3])
        session.start("other", [5, 3], salt=salt)
        session.policy.observe([], row)
        assert (session.tree("r").num_nodes > 1) is known


def test_an_id_used_again_sees_the_new_prompt_alone() -> None:
    session = Session()
    session.start("r", [*PHRASE, 1, 2, *PHRASE[:5]])
    session.policy.stop_request("r")
    session.start("r", PHRASE[:5])
    assert session.tree("r").num_nodes == 1


def test_stop_tokens_are_never_drafted() -> None:
    session = Session()
    session.start("r", [*PHRASE, 1, 2, *PHRASE[:5]], stops=[17, 99])
    assert paths(session.tree("r")) == {(16,)}


def test_depth_and_budget_are_limits() -> None:
    session = Session()
    for name, budget in (("r", 20), ("plain", 1)):
        session.start(name, [5, 6, 7] * 8, budget=budget)
    assert session.tree("r", max_depth=2).depths.max() == 2
    assert session.tree("r", max_depth=0).num_nodes == 1
    assert session.tree("plain").num_nodes == 1
    trees = session.trees("r", "plain", max_nodes=5)
    assert [tree.num_nodes for tree in trees] == [4, 1]


def test_a_text_that_outgrows_its_room_moves_and_is_still_found() -> None:
    session = Session(max_positions=1 << 11)
    session.start("r", [*PHRASE, 1, 2, 3])
    steps = session.write("r", [100 + n % 97 for n in range(3000)])
    assert steps < 1500
    session.write("r", PHRASE[:5])
    assert (16, 17, 18, 1, 2) in paths(session.tree("r"))


def test_past_texts_give_way_to_new_ones_and_memory_stays_bounded() -> None:
    session = Session(max_positions=1 << 11)
    before = session.policy.num_bytes
    session.start("writer", [40, 41])
    session.write("writer", PHRASE)
    session.policy.stop_request("writer")
    for number in range(8):
        name = f"r{number}"
        session.start(name, [1000 + number] * 3)
        session.write(name, [2000 + 300 * number + n for n in range(300)])
        session.policy.stop_request(name)
    session.start("reader", [3, *PHRASE[:4]])
    assert session.tree("reader").num_nodes == 1
    assert session.policy.num_bytes == before


def test_rows_take_the_memory_that_is_promised_whatever_the_vocabulary() -> None:
    tables = new_successors()
    tokens = tables.tokens.nbytes + tables.token_means.nbytes
    assert tokens <= 32e6
    assert sum(table.nbytes for table in (*tables[:-1], *tables.usual)) - tokens <= 32e6
    session = Session()
    before = session.policy.num_bytes
    session.start("r", [151_000, 262_000, 3])
    session.policy.observe([], session.rows_from("r", 0))
    assert session.policy.num_bytes == before
    assert before["token_rows"] == tokens


def test_the_same_inputs_give_the_same_trees() -> None:
    results = []
    for _ in range(2):
        session = Session()
        session.start("r", [*PHRASE, 1, 2, *PHRASE[:5]])
        session.write("r", [16, 17, 99, *PHRASE, 1, 2], rows=True)
        tree = session.tree("r")
        results.append((tree.token_ids.tolist(), tree.parents.tolist(), tree.probs.tolist()))
    assert results[0] == results[1]


def test_a_frozen_model_learns_nothing() -> None:
    frozen, learning = Session(learning_rate=0.0), Session()
    before = frozen.policy.weights.values
    for session in (frozen, learning):
        session.start("r", [5, 6, 7] * 8)
        session.write("r", [9, 9, 5, 6, 7, 5, 6])
    assert (frozen.policy.weights.values == before).all()
    assert (learning.policy.weights.values != before).any()


def test_what_the_target_chose_teaches_the_same_whoever_made_the_tree() -> None:
    learned = []
    for own in (True, False):
        session = Session()
        session.start("r", [5, 6, 7] * 8)
        before = session.policy.weights.values
        tree = session.tree("r") if own else TokenTree.anchor_only(7)
        # The bonus token of an anchor whose children were all rejected.
        session.policy.observe([TreeOutcome("r", tree, np.empty(0, np.int64), np.asarray([9]), 9)], None)
        learned.append(session.policy.weights.values)
        assert (learned[-1] != before).any()
    assert (learned[0] == learned[1]).all()
    session.texts["r"].append(9)
    assert session.tree("r").token_ids[0] == 9


def test_what_is_told_of_late_is_text_and_teaches_as_much_as_its_last_step() -> None:
    at_once, late = Session(learning_rate=0.0), Session(learning_rate=0.0)
    learning = Session()
    prompt, reply = [5, 6, 7, 8, 9, 1, 2, 3, 4], [5, 6, 7]
    for session in (at_once, late, learning):
        session.start("r", prompt)
        session.texts["r"] += reply
    before = learning.policy.weights.values
    nothing = np.empty(0, dtype=np.int64)
    for anchor, token in zip([4, 5, 6], reply, strict=True):
        at_once.policy.observe(
            [TreeOutcome("r", TokenTree.anchor_only(anchor), nothing, np.array([token]), token)], None
        )
    joined = TreeOutcome("r", TokenTree.anchor_only(6), nothing, np.array(reply), 7, num_earlier=2)
    late.policy.observe([joined], None)
    learning.policy.observe([joined], None)
    tree = late.tree("r")
    assert tree.token_ids.tolist()[:3] == [7, 8, 9]
    assert tree.token_ids.tolist() == at_once.tree("r").token_ids.tolist()
    assert (learning.policy.weights.values != before).any()


def test_verbs_out_of_order_name_the_request() -> None:
    session = Session()
    session.start("r", [1])
    with pytest.raises(RequestStateError, match="'r' was started already"):
        session.start("r", [1])
    session.texts["gone"] = [1]
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        session.tree("gone")
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        session.policy.stop_request("gone")
    outcome = TreeOutcome("gone", TokenTree.anchor_only(1), np.empty(0, np.int64), np.asarray([1]), 1)
    with pytest.raises(RequestStateError, match="'gone' is not started"):
        session.policy.observe([outcome], None)


def test_many_requests_at_once_keep_their_texts_apart() -> None:
    session = Session()
    names = [f"r{number}" for number in range(20)]
    for number, name in enumerate(names):
        base = 100 * (number + 1)
        session.start(name, [base + t for t in (1, 2, 3, 4, 5, 6, 1, 2, 3)])
    for number, tree in enumerate(session.trees(*names)):
        base = 100 * (number + 1)
        assert (base + 4, base + 5, base + 6) in paths(tree)
        assert {int(token) // 100 for token in tree.token_ids} == {number + 1}
