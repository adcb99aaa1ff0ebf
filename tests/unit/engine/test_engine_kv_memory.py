"""KVMemory under traffic: a sequence's slots lie together, whoever runs beside it and however full the pool is."""

import numpy as np
import pytest
from engine_helpers import ScriptedSpeculator, make_engine, make_request, run
from fakes import FakeRunner, looping_model

from goose_ray.engine.step import StepBatch

MODEL = looping_model()
VOCAB_SIZE = 5000


class Spread:
    """Counts sequences' steps, and those whose slots span more than attention reads in place."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_wide = 0

    def __call__(self, batch: StepBatch) -> None:
        for step in batch.sequences:
            slots = np.concatenate((step.context_slots, batch.slots[step.row_start : step.row_end]))
            self.num_steps += 1
            self.num_wide += int(slots.max()) + 1 - int(slots.min()) > 1.25 * len(slots)


@pytest.mark.parametrize(("num_slots", "concurrency"), [(16384, 16), (8192, 12), (8192, 1)])
def test_slots_lie_together_among_concurrent_sequences_and_cached_texts(num_slots: int, concurrency: int) -> None:
    # A few texts fill the pool, so that most of the time something must be evicted. By one stack of free slots, 99 of
    # 100 were spread.
    random = np.random.default_rng(0)
    spread = Spread()
    runner = FakeRunner(
        MODEL, vocab_size=VOCAB_SIZE, num_slots=num_slots, max_model_len=1024, on_step=spread, checked=False
    )
    engine = make_engine(
        MODEL,
        ScriptedSpeculator(MODEL, num_right=2, siblings=4),
        runner=runner,
        budget=16,
        max_running_requests=concurrency,
    )
    common = list(range(1, 20))
    requests = [
        make_request(
            str(number),
            [*common, *random.integers(0, VOCAB_SIZE, random.integers(30, 500)).tolist()],
            max_tokens=int(random.integers(20, 150)),
            ignore_eos=True,
        )
        for number in range(70)
    ]
    run(engine, *requests)
    computed = sum(len(request.prompt_token_ids) + request.sampling.max_tokens for request in requests)
    assert computed > 1.3 * num_slots
    assert engine.stats().num_preemptions == 0
    assert spread.num_steps > 1000
    assert spread.num_wide < 0.12 * spread.num_steps


def test_a_beginning_is_shared_where_that_saves_more_than_slots_apart_cost() -> None:
    engine = make_engine(MODEL, runner=FakeRunner(MODEL, num_slots=2000, max_model_len=1000))
    common = [1, 2, 3] * 40

    def cached(num_common: int, num_own: int, first: int) -> int:
        prompt = [*common[:num_common], *([first, 50, 51] * num_own)[:num_own]]
        last = run(engine, make_request(prompt=prompt, max_tokens=1))["r"].last
        assert last is not None
        return last.num_cached_tokens

    assert cached(120, 30, 20) == 0
    assert cached(64, 300, 21) == 64
    assert cached(63, 300, 22) == 0
    assert cached(63, 60, 23) == 63
