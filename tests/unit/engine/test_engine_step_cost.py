"""The engine and its cost model: what is predicted of a step, what is learned from it, what a policy is told."""

from dataclasses import replace

import numpy as np
import pytest
from engine_helpers import ScriptedSpeculator, make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.cost import CostModel, StepShape
from goose.speculator import Speculator
from goose.tree import FloatArray, TokenTree, TreeBatch
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import SequenceStep, StepBatch
from goose_ray.engine.step_cost import StepCost, shape_of

MODEL = looping_model()


class Machine:
    """A clock that goes on by `seconds[rows]` (the last for more) a forward."""

    def __init__(self, seconds: list[float]) -> None:
        self.now_s, self.seconds = 0.0, seconds
        self.shapes: list[StepShape] = []

    def work(self, batch: StepBatch) -> None:
        self.shapes.append(shape_of(batch))
        self.now_s += self.seconds[min(batch.num_rows, len(self.seconds) - 1)]

    def engine(self, speculator: ScriptedSpeculator | Speculator, cost: CostModel | None) -> Engine:
        return Engine(
            FakeRunner(MODEL, on_step=self.work),
            speculator,
            FakeTokenizer(specials=(EOS,)),
            EngineConfig(max_batch_rows=64, prefix_cache=False),
            cost=cost,
            clock=lambda: self.now_s,
        )


class Listening(ScriptedSpeculator):
    """Keeps the durations that it was told."""

    def propose(self, *args: object, step_seconds: FloatArray | None = None, **kwargs: object) -> TreeBatch:
        self.told = [*getattr(self, "told", []), step_seconds]
        return super().propose(*args, **kwargs)  # type: ignore[arg-type]


def known(seconds: list[float], *, rounds: int = 3) -> CostModel:
    model = CostModel(max_rows=64)
    for _ in range(rounds):
        for rows in range(1, 65):
            model.observe(StepShape(rows, 1, 0, 0), seconds[min(rows, len(seconds) - 1)])
    return model


def test_steps_are_predicted_and_learned_from() -> None:
    before, now = [0.1] * 65, [0.3] * 65
    machine, model = Machine(now), known(before)
    engine = machine.engine(ScriptedSpeculator(MODEL, length=3, num_right=0), model)
    run(engine, make_request(max_tokens=40, ignore_eos=True))
    records = engine.trace.last()
    assert records[0].predicted_s == pytest.approx(0.1, rel=0.01)
    assert records[-1].predicted_s == pytest.approx(0.3, rel=0.05)
    assert all(record.step_s == pytest.approx(0.3) for record in records)
    assert "(predicted 100.0)" in str(records[0])
    stats = engine.stats()
    assert stats.step_seconds == pytest.approx(0.3 * stats.num_steps)
    assert stats.predicted_step_seconds == pytest.approx(sum(record.predicted_s or 0 for record in records))
    assert stats.step_error_seconds == pytest.approx(stats.step_seconds - stats.predicted_step_seconds, rel=0.2)
    assert model.predict(StepShape(4, 1, 20, 60)) == pytest.approx(0.3, rel=0.05)


def test_without_a_model_nothing_is_predicted() -> None:
    speculator = Listening(MODEL)
    engine = Machine([0.1]).engine(speculator, None)
    run(engine, make_request())
    assert {record.predicted_s for record in engine.trace.last()} == {None}
    assert set(speculator.told) == {None}
    assert engine.stats().predicted_step_seconds == 0.0
    assert engine.stats().step_seconds > 0.0


def test_a_model_that_knows_nothing_yet_learns_from_the_first_step() -> None:
    model = CostModel(max_rows=64)
    engine = Machine([0.1]).engine(Listening(MODEL), model)
    run(engine, make_request())
    assert engine.trace.last()[0].predicted_s is None
    assert model.predict(StepShape(8, 1, 10, 80)) == pytest.approx(0.1, rel=0.1)


def test_a_node_costs_what_it_adds_and_prefill_nothing() -> None:
    """Rows are free up to 16. Beside a prefill of 19 each takes 0.05 s, and the prefill's own time is not theirs."""
    seconds = [0.1 + 0.05 * max(0, rows - 16) for rows in range(65)]
    model, speculator = known(seconds), Listening(MODEL, length=3, num_right=0)
    machine = Machine(seconds)
    engine = machine.engine(speculator, model)
    engine.add_request(make_request("decoding", (1, 2, 3), max_tokens=40, ignore_eos=True))
    for _ in range(4):
        engine.step()
    without = speculator.told[-1]
    assert without is not None
    assert without[[1, 10]].tolist() == pytest.approx([0.1, 0.1], rel=0.1)
    engine.add_request(make_request("prefilling", tuple(range(1, 21)), max_tokens=40, ignore_eos=True))
    engine.step()
    told = speculator.told[-1]
    assert told is not None
    assert told[2] == pytest.approx(0.1, rel=0.1)
    assert told[10] == pytest.approx(0.5, rel=0.1)
    # 19 rows of prefill and two trees of four nodes
    assert machine.shapes[-1].rows == 27
    assert engine.trace.last()[-1].predicted_s == pytest.approx(seconds[27], rel=0.1)


def test_a_step_of_prefill_says_nothing_of_trees() -> None:
    """A row of it has no logits and takes two thirds of one of a tree."""
    model = known([0.1] * 65)
    at_first = model.predict(StepShape(40, 1, 0, 0))
    engine = Machine([0.1] * 30 + [0.067] * 35).engine(Listening(MODEL, length=3, num_right=0), model)
    for name in "abcdefgh":
        engine.add_request(make_request(name, tuple(range(1, 41)), max_tokens=1))
    while engine.has_work:
        engine.step()
    assert model.predict(StepShape(40, 1, 0, 0)) == at_first
    run(engine, make_request(max_tokens=20, ignore_eos=True))
    assert model.predict(StepShape(40, 1, 0, 0)) != at_first


def test_a_size_that_a_busy_moment_made_look_dear_is_tried_again() -> None:
    """No tree would be tried of what seems to take thirty times as long; prompts of as many rows say otherwise."""
    model = known([0.05] * 4 + [1.5] * 61)
    engine = Machine([0.05] * 65).engine(Listening(MODEL, length=12, num_right=12), model)
    for number in range(8):
        run(engine, make_request(f"r{number}", tuple(range(1, 14)), max_tokens=2, ignore_eos=True))
    assert model.predict(StepShape(13, 1, 0, 0)) < 0.2


@pytest.mark.parametrize(("rows", "learned"), [(64, True), (65, False)])
def test_of_prefill_only_steps_as_small_as_those_of_trees_say_what_is_too_dear(rows: int, learned: bool) -> None:
    model = CostModel(max_rows=128)
    for _ in range(3):
        model.observe(StepShape(1, 1, 0, 0), 0.05)
        model.observe(StepShape(rows, 1, 0, 0), 1.5)
    before = model.predict(StepShape(rows, 1, 0, 0))
    prefill = SequenceStep(
        request_id="a",
        row_start=0,
        row_end=rows,
        num_chain=rows,
        context_slots=np.empty(0, dtype=np.int64),
        tree=None,
        sampling=SamplingParams(max_tokens=8),
        output_position=0,
        harvest_chain=False,
    )
    ids = np.zeros(rows, dtype=np.int64)
    batch = StepBatch(
        step_id=0, token_ids=ids, positions=ids, slots=ids, parents=ids, sequences=(prefill,), harvest_k=0
    )
    StepCost(model).observe(batch, step_s=0.05, speculation_s=0.0, drafted=False, num_committed=0)
    assert (model.predict(StepShape(rows, 1, 0, 0)) < before) == learned


def test_room_is_kept_for_twice_the_nodes_that_trees_have_lately() -> None:
    cost = StepCost(known([0.1] * 65))
    steps = [
        SequenceStep(
            request_id=str(i),
            row_start=4 * i,
            row_end=4 * i + 4,
            num_chain=1,
            context_slots=np.empty(0, dtype=np.int64),
            tree=TokenTree.chain(0, [1, 2, 3], source=0),
            sampling=SamplingParams(max_tokens=8),
            output_position=0,
            harvest_chain=False,
        )
        for i in range(2)
    ]
    rows = np.zeros(8, dtype=np.int64)
    batch = StepBatch(
        step_id=0, token_ids=rows, positions=rows, slots=rows, parents=rows, sequences=tuple(steps), harvest_k=0
    )
    for _ in range(200):
        cost.observe(batch, step_s=0.1, speculation_s=0.0, drafted=True, num_committed=2)
    assert cost.nodes_per_tree == pytest.approx(8.0, rel=0.01)
    assert StepCost(None).nodes_per_tree is None


def test_drafts_beside_a_prefill_are_charged_with_what_they_add() -> None:
    """Each row costs; the prefill's rows are none of the drafts' doing."""
    seconds = [0.1 + 0.01 * rows for rows in range(65)]
    drafting = SequenceStep(
        request_id="a",
        row_start=0,
        row_end=4,
        num_chain=1,
        context_slots=np.empty(0, dtype=np.int64),
        tree=TokenTree.chain(0, [1, 2, 3], source=0),
        sampling=SamplingParams(max_tokens=8),
        output_position=0,
        harvest_chain=False,
    )
    rest = replace(drafting, request_id="b", row_start=4, row_end=44, num_chain=40, tree=None)
    rows = np.zeros(44, dtype=np.int64)
    batch = StepBatch(
        step_id=0, token_ids=rows, positions=rows, slots=rows, parents=rows, sequences=(drafting, rest), harvest_k=0
    )

    def steps_until_rest(num_committed: int) -> int:
        cost = StepCost(known(seconds))
        for step in range(200):
            if not cost.plan.drafts:
                return step
            cost.observe(batch, step_s=seconds[44], speculation_s=0.0, drafted=True, num_committed=num_committed)
        return 200

    # Three rows of 0.01 s in a plain step of 0.11: 0.27 plain steps, and six to lose.
    assert steps_until_rest(1) == pytest.approx(6.0 / 0.27, abs=3)
    assert steps_until_rest(2) == 200


def test_the_time_to_learn_is_none_of_the_forwards() -> None:
    machine = Machine([0.1 + 0.01 * rows for rows in range(65)])

    class Slow(ScriptedSpeculator):
        """Learns for as long as half a step takes."""

        def observe(self, *args: object) -> list[dict[str, tuple[int, int]]]:
            machine.now_s += 0.06
            return super().observe(*args)  # type: ignore[arg-type]

    cost = known(machine.seconds)
    engine = machine.engine(Slow(MODEL, length=3, num_right=3), cost)
    engine.add_request(make_request("a", (1, 2, 3), max_tokens=100, ignore_eos=True))
    while engine.has_work:
        engine.step()
    assert engine.stats().num_draft_tokens > 50
    assert cost.predict(StepShape(4, 1, 50, 200)) == pytest.approx(0.14, rel=0.05)
    predicted = [record.predicted_s for record in engine.trace.last(10)]
    assert predicted == pytest.approx([record.step_s for record in engine.trace.last(10)], rel=0.05)


def test_the_shape_of_a_step() -> None:
    machine = Machine([0.1])
    engine = machine.engine(ScriptedSpeculator(MODEL, length=3, num_right=0), None)
    for name in "ab":
        engine.add_request(make_request(name, (1, 2, 3), max_tokens=40, ignore_eos=True))
    engine.step()
    engine.step()
    assert machine.shapes == [StepShape(2 * 6, 2, 0, 0), StepShape(2 * 4, 2, 2 * 3, 2 * 4 * 3)]


@pytest.mark.parametrize("count", [1, 3])
def test_the_machine_decides_the_size_of_trees_and_nothing_else(count: int) -> None:
    """Automatic budget on two machines: rows for nothing, and rows that each cost a whole step."""
    requests = [make_request(name, (1, 2, 3 + i), max_tokens=60, ignore_eos=True) for i, name in enumerate("abc")]
    sizes = []
    for seconds in ([1.0] * 65, [1.0 * max(1, rows) for rows in range(65)]):
        machine = Machine(seconds)
        speculator = Speculator(policy="anisotropic", budget=None, harvest_k=4)
        engine = machine.engine(speculator, known(seconds))
        replies = run(engine, *requests[:count])
        for request in requests[:count]:
            expected = plain_reply(MODEL, request, FakeTokenizer(specials=(EOS,)))
            assert replies[request.request_id].visible == expected
        assert engine.stats().num_draft_errors == 0
        sizes.append(np.mean([record.rows / len(record.sequences) for record in engine.trace.last()[5:]]))
    assert sizes[0] > 4
    assert sizes[1] < 1.5
