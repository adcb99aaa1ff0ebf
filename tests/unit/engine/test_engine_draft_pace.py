"""DraftPace: drafts that cost more than they gain are given up, those that pay are not, and change is noticed."""

from collections.abc import Callable

import numpy as np
import pytest
from engine_helpers import ScriptedSpeculator, make_request, plain_reply, run
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model

from goose.cost import CostModel, StepShape
from goose_ray.config import EngineConfig
from goose_ray.engine.draft_pace import DraftPace
from goose_ray.engine.engine import Engine
from goose_ray.engine.step import StepBatch

# The allowance, and what it begins with, in plain steps of one sequence.
ALLOWANCE, START = 0.004, 6.0


def decode(
    pace: DraftPace, num_steps: int, num_sequences: int, tokens: Callable[[], int], cost: float
) -> tuple[list[bool], float]:
    """Whether each step drafted, and the time of all over what plain decoding would have taken for their tokens.

    A step with drafts takes `cost` plain steps and commits `tokens()` in all.
    """
    drafted, spent, worth = [], 0.0, 0.0
    for _ in range(num_steps):
        drafted.append(pace.plan.drafts)
        if drafted[-1]:
            num_committed = tokens()
            pace.drafted(num_sequences=num_sequences, num_committed=num_committed, seconds=cost, plain_seconds=1.0)
            spent, worth = spent + cost, worth + num_committed / num_sequences
        else:
            pace.rested(num_sequences=num_sequences)
            spent, worth = spent + 1.0, worth + 1.0
    return drafted, spent - worth


@pytest.mark.parametrize("num_sequences", [1, 4, 16])
@pytest.mark.parametrize("cost", [1.01, 1.06, 3.0])
def test_drafts_that_gain_nothing_cost_the_allowance(num_sequences: int, cost: float) -> None:
    num_steps = 8000
    _, lost = decode(DraftPace(), num_steps, num_sequences, lambda: num_sequences, cost)
    # What it had, what it was given, and the one step that it may be wrong about.
    assert lost <= START / num_sequences + ALLOWANCE * num_steps * cost + min(cost - 1, 1.0)


@pytest.mark.parametrize(("num_sequences", "gain"), [(16, 0.04), (1, 0.1)])
def test_drafts_that_pay_a_little_go_on(num_sequences: int, gain: float) -> None:
    """Each sequence is given 0, 1 or 2 tokens more: 3 of 10 steps on average, seeded."""
    rng = np.random.default_rng(5)
    more = 0.3

    def tokens() -> int:
        return num_sequences + int(rng.binomial(2 * num_sequences, more / 2))

    drafted, _ = decode(DraftPace(), 5000, num_sequences, tokens, 1.0 + more - gain)
    assert np.mean(drafted) > 0.98


def test_text_that_becomes_predictable_is_noticed() -> None:
    pace = DraftPace()
    drafted, _ = decode(pace, 1000, 16, lambda: 16, 1.1)
    assert np.mean(drafted[-500:]) < 0.1
    drafted, _ = decode(pace, 200, 16, lambda: 48, 1.3)
    assert drafted.index(True) < 60
    assert all(drafted[drafted.index(True) :])


def test_a_stall_says_nothing_of_drafts() -> None:
    pace = DraftPace()
    pace.drafted(num_sequences=1, num_committed=1, seconds=1000.0, plain_seconds=1.0)
    assert pace.plan.drafts


class Machine:
    """Each forward takes a second, and a tenth more for each row behind the first of a sequence."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rows: list[dict[str, int]] = []

    def work(self, batch: StepBatch) -> None:
        self.now_s += 1.0 + 0.1 * (batch.num_rows - len(batch.sequences))
        self.rows.append({step.request_id: step.row_end - step.row_start for step in batch.sequences})


def test_an_engine_rests_where_drafts_fail_but_not_for_requests_that_name_a_policy() -> None:
    model, machine, cost = looping_model(), Machine(), CostModel(max_rows=64)
    for _ in range(3):
        for rows in range(1, 17):
            cost.observe(StepShape(rows, min(rows, 2), 0, 0), 1.0 + 0.1 * (rows - min(rows, 2)))
    engine = Engine(
        FakeRunner(model, num_slots=1024, max_model_len=512, on_step=machine.work),
        ScriptedSpeculator(model, length=4, num_right=0),
        FakeTokenizer(specials=(EOS,)),
        EngineConfig(max_batch_rows=64, prefix_cache=False),
        cost=cost,
        clock=lambda: machine.now_s,
    )
    own = make_request("own", policy="scripted", max_tokens=300, ignore_eos=True)
    free = make_request("free", (4, 5), max_tokens=300, ignore_eos=True)
    replies = run(engine, own, free)
    for request in (own, free):
        assert replies[request.request_id].visible == plain_reply(model, request, FakeTokenizer(specials=(EOS,)))
    decoding = [rows for rows in machine.rows[1:] if len(rows) == 2]
    assert decoding[0]["free"] == 5
    assert np.mean([rows["free"] > 1 for rows in decoding[-100:]]) < 0.1
    # The last tree may be no deeper than the output.
    assert all(rows["own"] == 5 for rows in decoding[:-5])
