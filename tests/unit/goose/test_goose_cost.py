"""The cost model: plateaus and jumps are learned, drift is followed, a stalled step poisons nothing."""

import doctest
import json
import math

import numpy as np
import pytest

import goose.cost
from goose.cost import CostModel, StepShape

# A machine on which two rows cost nearly twice as much as one, and eight no more than two.
ROWS, SECONDS = [1, 2, 8, 16, 64, 512], [0.069, 0.125, 0.116, 0.137, 0.249, 1.8]


def true_seconds(shape: StepShape) -> float:
    base = float(np.interp(shape.rows, ROWS, SECONDS))
    return base + 1e-3 * (shape.sequences - 1) + 7e-6 * shape.context + 1.3e-6 * shape.attended


def alone(rows: int, context: int = 512) -> StepShape:
    return StepShape(rows, 1, context, rows * context)


def measured(rounds: int = 3, noise: float = 0.05) -> CostModel:
    rng = np.random.default_rng(7)
    model = CostModel()
    for _ in range(rounds):
        for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512):
            for shape in (alone(rows, 64), alone(rows, 512), StepShape(rows, min(rows, 8), 512, 64 * rows)):
                model.observe(shape, true_seconds(shape) * float(rng.lognormal(0, noise)))
    return model


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 12, 16, 40, 64, 512])
@pytest.mark.parametrize("context", [64, 300, 2000])
def test_it_predicts_what_it_was_shown_and_what_lies_between(rows: int, context: int) -> None:
    shape = alone(rows, context)
    assert measured().predict(shape) == pytest.approx(true_seconds(shape), rel=0.12)


def test_the_curve_keeps_the_jump_and_the_plateau() -> None:
    curve = measured().curve(StepShape(0, 1, 512, 0), 64, context_per_row=512)
    assert len(curve) == 65
    assert curve[2] > 1.5 * curve[1]
    assert curve[8] < 1.05 * curve[2]
    assert curve[64] > 1.8 * curve[8]


def test_the_curve_is_what_is_predicted_of_each_step() -> None:
    model = measured()
    # 30 prefill rows of one sequence; three others decode at 200 tokens of context each
    fixed = StepShape(rows=30, sequences=4, context=700, attended=3000)
    curve = model.curve(fixed, 40, context_per_row=200)
    for rows in (0, 3, 17, 40):
        assert curve[rows] == pytest.approx(model.predict(StepShape(30 + rows, 4, 700, 3000 + 200 * rows)), rel=1e-5)


def test_the_example_runs() -> None:
    assert doctest.testmod(goose.cost).failed == 0


def test_a_stalled_step_changes_little() -> None:
    model = measured()
    before = [model.predict(alone(rows)) for rows in ROWS]
    model.observe(alone(8), 60.0)
    after = [model.predict(alone(rows)) for rows in ROWS]
    assert after == pytest.approx(before, rel=0.1)


def test_stalls_now_and_then_are_forgotten() -> None:
    model = measured()
    for step in range(400):
        model.observe(alone(8), 60.0 if step % 50 == 0 else true_seconds(alone(8)))
    assert model.predict(alone(8)) == pytest.approx(true_seconds(alone(8)), rel=0.1)


def test_a_first_step_that_stalled_is_forgotten_too() -> None:
    model = CostModel()
    model.observe(alone(1), 30.0)
    for _ in range(30):
        model.observe(alone(1), true_seconds(alone(1)))
    assert model.predict(alone(1)) == pytest.approx(true_seconds(alone(1)), rel=0.1)


@pytest.mark.parametrize("factor", [10.0, 1e4])
@pytest.mark.parametrize("seed", [0, 19])
def test_a_stall_while_little_is_known_is_forgotten(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    model = CostModel(max_rows=8)
    stalled = int(rng.integers(5, 20))
    ratios = []
    for step in range(60):
        rows = int(rng.integers(1, 9))
        sequences = int(rng.integers(1, rows + 1))
        context = int(rng.choice([0, 50, 2000]))
        shape = StepShape(rows, sequences, context, context * rows // sequences)
        seconds = 1e-3 * (1 + rows / 30) + 1e-7 * shape.attended + 1e-5 * sequences
        if step >= 40:
            ratios.append(model.predict(shape) / seconds)
        model.observe(shape, seconds * rng.lognormal(0, 0.1) * (factor if step == stalled else 1.0))
    assert 1 / 3 < min(ratios) <= max(ratios) < 3


def test_a_slower_machine_is_followed_also_at_rows_that_do_not_occur() -> None:
    model = measured()
    rng = np.random.default_rng(1)
    for _ in range(150):
        shape = alone(int(rng.choice([1, 4, 16])))
        model.observe(shape, 2 * true_seconds(shape))
    for rows in ROWS:
        assert model.predict(alone(rows)) == pytest.approx(2 * true_seconds(alone(rows)), rel=0.15)


def test_what_is_not_a_duration_is_left_out() -> None:
    model, untouched = measured(), measured()
    for seconds in (math.nan, math.inf, -math.inf, 0.0, -1.0):
        model.observe(alone(8), seconds)
    assert model.snapshot() == untouched.snapshot()


def test_nothing_is_ever_negative_or_nan() -> None:
    rng = np.random.default_rng(3)
    model = CostModel(max_rows=100)
    for _ in range(2000):
        rows = int(rng.integers(1, 300))
        shape = StepShape(rows, int(rng.integers(1, 40)), int(rng.integers(0, 10**6)), int(rng.integers(0, 10**8)))
        model.observe(shape, float(10.0 ** rng.uniform(-9, 4)))
        curve = model.curve(StepShape(0, 1, 0, 0), 300, context_per_row=0.0, optimism=3.0)
        assert np.isfinite(curve).all()
        assert (curve > 0).all()
        assert 0 < model.predict(shape) < math.inf


def test_what_has_not_been_seen_for_long_is_hoped_to_be_cheaper() -> None:
    model = measured()
    fixed = StepShape(0, 1, 512, 0)

    def hope(rows: int) -> float:
        plain, hoped = (model.curve(fixed, 64, context_per_row=512, optimism=o) for o in (0.0, 1.0))
        return float(1 - hoped[rows] / plain[rows])

    before = hope(16)
    for _ in range(2000):
        model.observe(alone(1), true_seconds(alone(1)))
    assert hope(16) > before + 0.02
    assert hope(1) < before + 0.02
    assert hope(16) < 0.31


def test_a_snapshot_goes_on_where_it_was_taken() -> None:
    model = measured()
    loaded = CostModel.load(json.loads(json.dumps(model.snapshot())))
    for both in (model, loaded):
        both.observe(alone(5), 0.3)
    assert loaded.snapshot() == model.snapshot()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", [1.0]),
        ("seconds", [math.nan] * 21),
        ("seconds", [-1.0] * 21),
        ("covariance", [[1.0]]),
        ("noise", 7.0),
    ],
)
def test_a_snapshot_that_is_none_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        CostModel.load({**measured().snapshot(), field: value})


def test_nothing_is_predicted_of_nothing() -> None:
    with pytest.raises(ValueError, match="no step"):
        CostModel().predict(alone(1))
    with pytest.raises(ValueError, match="no step"):
        CostModel().curve(alone(1), 8, context_per_row=0.0)
    with pytest.raises(ValueError, match="max_rows"):
        CostModel(max_rows=0)
