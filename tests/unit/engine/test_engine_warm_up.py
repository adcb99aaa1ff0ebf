"""Measuring a runner before it serves: what is tried, what is left untouched, what makes it give up."""

from collections import Counter

import pytest
from engine_helpers import make_engine, make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.cost import CostModel, StepShape
from goose_ray.engine.step import StepBatch
from goose_ray.engine.warm_up import measure_cost
from goose_ray.errors import EngineDeadError

MODEL = looping_model()


class Machine:
    """A clock that goes on by what each step of the runner takes."""

    def __init__(self, *, slowness: float = 1.0) -> None:
        self.now_s = 0.0
        self.slowness = slowness
        self.rows: Counter[int] = Counter()
        self.sequences: Counter[int] = Counter()

    def clock(self) -> float:
        return self.now_s

    def work(self, batch: StepBatch) -> None:
        self.rows[batch.num_rows] += 1
        self.sequences[len(batch.sequences)] += 1
        self.now_s += self.slowness * self.seconds(batch.num_rows, len(batch.sequences))

    @staticmethod
    def seconds(rows: int, sequences: int = 1) -> float:
        # a jump between one row and two, then a plateau up to sixteen
        return 0.002 * (sequences - 1) + (0.05 if rows == 1 else max(0.1, 0.1 + 0.003 * (rows - 16)))

    def measure(self, runner: FakeRunner, *, stall_timeout_s: float = 100.0, max_seconds: float = 30.0) -> CostModel:
        return measure_cost(
            runner,
            max_rows=256,
            max_sequences=32,
            harvest_k=4,
            max_seconds=max_seconds,
            stall_timeout_s=stall_timeout_s,
            clock=self.clock,
        )


def runner_on(machine: Machine, *, num_slots: int = 2048) -> FakeRunner:
    return FakeRunner(MODEL, num_slots=num_slots, max_model_len=512, on_step=machine.work)


def test_the_curve_is_the_machines() -> None:
    machine = Machine()
    model = machine.measure(runner_on(machine))
    assert model.max_rows == 256
    for rows in (1, 2, 5, 12, 16, 48, 64, 200, 256):
        assert model.predict(StepShape(rows, 1, 256, 256 * rows)) == pytest.approx(machine.seconds(rows), rel=0.12)
    assert model.predict(StepShape(16, 16, 256, 256)) == pytest.approx(machine.seconds(16, 16), rel=0.12)


def test_a_slow_machine_is_measured_at_the_rows_that_say_most() -> None:
    machine = Machine(slowness=20.0)
    model = machine.measure(runner_on(machine), max_seconds=10.0)
    assert machine.now_s < 80
    assert [machine.rows[rows] > 0 for rows in (1, 8, 64, 256)] == [True, True, True, True]
    assert sum(machine.rows.values()) < 12
    assert model.predict(StepShape(8, 1, 256, 2048)) == pytest.approx(20 * machine.seconds(8), rel=0.12)


@pytest.mark.parametrize(("num_slots", "max_rows"), [(64, 512), (64, 8), (300, 9), (20_000, 1)])
def test_it_fits_into_any_pool(num_slots: int, max_rows: int) -> None:
    """The fake runner refuses slots that do not exist or hold another's tokens."""
    runner = FakeRunner(MODEL, num_slots=num_slots, max_model_len=64)
    model = measure_cost(runner, max_rows=max_rows, max_sequences=32, harvest_k=0, max_seconds=0.05)
    assert model.predict(StepShape(1, 1, 64, 64)) < 10.0
    assert runner.num_steps > 3


def test_the_engine_afterwards_is_as_new() -> None:
    machine = Machine()
    runner = runner_on(machine)
    machine.measure(runner)
    engine = make_engine(MODEL, runner=runner)
    stats = engine.stats()
    assert (stats.num_steps, stats.kv_slots_used, stats.num_rows, stats.prompt_tokens) == (0, 0, 0, 0)
    request = make_request("warm-up-0", (1, 2, 3))
    assert run(engine, request)["warm-up-0"].visible == plain_reply(MODEL, request, FakeTokenizer(specials=(EOS,)))


def test_a_forward_that_stalls_ends_it() -> None:
    machine = Machine(slowness=1000.0)
    with pytest.raises(EngineDeadError, match="while warming up"):
        machine.measure(runner_on(machine), stall_timeout_s=10.0)
