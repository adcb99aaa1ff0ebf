"""Outcomes kept back while drafting rests: nothing of them is lost, and every step's tokens come in order."""

from collections.abc import Sequence

import numpy as np
from engine_helpers import ScriptedSpeculator, make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.cost import CostModel, StepShape
from goose.observation import Harvest, TreeOutcome
from goose.tree import TokenTree
from goose_ray.config import EngineConfig
from goose_ray.engine.delivery import OutputStream
from goose_ray.engine.drafting import Drafting
from goose_ray.engine.engine import Engine
from goose_ray.engine.rested import RestedOutcomes
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.step import StepBatch

NOTHING = np.empty(0, dtype=np.int64)


def outcome(request_id: str, anchor: int, *token_ids: int) -> TreeOutcome:
    tree = TokenTree.anchor_only(anchor)
    return TreeOutcome(request_id, tree, NOTHING, np.array(token_ids, dtype=np.int64), token_ids[-1])


def test_what_is_kept_of_a_request_comes_with_its_next_outcome() -> None:
    rested = RestedOutcomes()
    for anchor in (1, 2):
        rested.keep(outcome("a", anchor, anchor + 1))
    rested.keep(outcome("b", 7, 8))
    joined = rested.joined(outcome("a", 3, 4))
    assert (joined.committed_ids.tolist(), joined.num_earlier, joined.bonus_id) == ([2, 3, 4], 2, 4)
    assert joined.tree.token_ids.tolist() == [3]
    assert joined.chosen_ids.tolist() == [4]
    assert rested.joined(outcome("a", 4, 5)).num_earlier == 0
    assert rested.take(["a"]) == []
    [other] = rested.take_all()
    assert (other.request_id, other.committed_ids.tolist(), other.num_earlier) == ("b", [8], 0)
    assert not rested


class Watching(ScriptedSpeculator):
    """Keeps what it knew of each request when that stopped, and how often it was told of a step."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.known: dict[str, list[int]] = {}
        self.num_told = 0

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[dict[str, tuple[int, int]]]:
        self.num_told += 1
        return super().observe(outcomes, harvest)

    def stop_request(self, request_id: str) -> None:
        self.known[request_id] = list(self.tokens[request_id])
        super().stop_request(request_id)


def test_what_a_grammar_forces_at_rest_is_told_behind_what_was_kept() -> None:
    model = looping_model()
    speculator = Watching(model, length=4, num_right=4)
    drafting = Drafting(speculator, 64)
    request = make_request("a", (1, 2, 3), max_tokens=40)
    sequence = SequenceState(request, OutputStream(FakeTokenizer(), request.sampling, ()), arrived_s=0.0)
    drafting.start(sequence)

    def rest(tree: TokenTree, accepted: list[int], *token_ids: int) -> None:
        drafting.propose([sequence], 8, resting=True)
        committed = TreeOutcome("a", tree, np.array(accepted, np.int64), np.array(token_ids), token_ids[-1])
        drafting.observe([committed], None, at_once=False)

    rest(TokenTree.anchor_only(3), [], 4)
    rest(TokenTree.chain(4, [5], source=0), [1], 5, 6)
    assert list(speculator.tokens["a"]) == [1, 2, 3, 4, 5, 6]
    assert drafting.num_errors == 0


class Machine:
    """A second a forward, and so much more for each draft node that none ever pays."""

    def __init__(self) -> None:
        self.now_s, self.num_steps = 0.0, 0

    def work(self, batch: StepBatch) -> None:
        self.now_s += 1.0 + 0.5 * (batch.num_rows - len(batch.sequences))
        self.num_steps += 1


def test_a_speculator_at_rest_is_told_seldom_and_of_everything_before_a_request_stops() -> None:
    model, machine, cost = looping_model(), Machine(), CostModel(max_rows=64)
    for _ in range(3):
        for rows in range(1, 17):
            cost.observe(StepShape(rows, min(rows, 2), 0, 0), 1.0 + 0.5 * (rows - min(rows, 2)))
    speculator = Watching(model, length=4, num_right=0)
    engine = Engine(
        FakeRunner(model, num_slots=1024, max_model_len=512, on_step=machine.work),
        speculator,
        FakeTokenizer(specials=(EOS,)),
        EngineConfig(max_batch_rows=64, prefix_cache=False),
        cost=cost,
        clock=lambda: machine.now_s,
    )
    requests = [make_request(name, (4, 5 + i), max_tokens=201 + i, ignore_eos=True) for i, name in enumerate("ab")]
    replies = run(engine, *requests)
    for request in requests:
        reply = replies[request.request_id]
        assert reply.visible == plain_reply(model, request, FakeTokenizer(specials=(EOS,)))
        assert speculator.known[request.request_id] == [*request.prompt_token_ids, *reply.token_ids]
    assert speculator.num_told < machine.num_steps / 4
