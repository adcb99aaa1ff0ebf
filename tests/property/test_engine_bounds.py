"""Long prompts, many requests at once and much churn in bounded memory, counted in slots and bytes.

`make slots` runs the whole: 32768 tokens, 10,000 requests that are cancelled or refused.
"""

import gc
import os
import tracemalloc
from random import Random
from typing import Any

import pytest
import torch
from engine_helpers import make_engine, make_request, run
from fakes import FakeRunner, FakeTokenizer, looping_model
from tiny_models import VOCAB_SIZE, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.trace import StepTrace
from goose_ray.errors import InvalidRequestError
from goose_ray.runner.local import LocalRunner

MODEL = looping_model()
MAX_ROWS = 256


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of the largest tensor that any operation made."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            # A view has no memory of its own.
            if isinstance(tensor, torch.Tensor) and not tensor._is_view():
                self.num_bytes = max(self.num_bytes, tensor.numel() * tensor.element_size())
        return result


def test_a_long_prompt_takes_memory_by_rows_not_by_its_square() -> None:
    num_prompt = int(os.environ.get("GOOSE_LONG_PROMPT", "2048"))
    num_slots = num_prompt + 64
    random = Random(1)
    prompt = [random.randrange(VOCAB_SIZE) for _ in range(num_prompt)]
    request = make_request(prompt=prompt, max_tokens=4)
    model = tiny_model("llama", max_position_embeddings=num_slots)
    expected = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=4)[0, num_prompt:].tolist()
    runner = LocalRunner(model, model_id="llama", num_slots=num_slots)
    engine = Engine(
        runner,
        Speculator(policy="autoregressive", budget=1),
        FakeTokenizer(),
        EngineConfig(policy="autoregressive", budget=1, max_batch_rows=MAX_ROWS),
    )
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        assert run(engine, request)["r"].token_ids == expected
    stats = engine.stats()
    assert stats.num_rows == num_prompt + 3
    assert stats.num_steps == num_prompt // MAX_ROWS + 3
    # The mask of a chunk: a row each, a column for every slot, in float32. No operation makes more.
    assert MAX_ROWS * num_prompt * 4 <= largest.num_bytes <= MAX_ROWS * num_slots * 4
    # And again, from the cache: the anchor's row and three more.
    assert run(engine, request)["r"].token_ids == expected
    assert engine.stats().num_rows == stats.num_rows + 4


def test_two_hundred_at_once_leave_no_more_behind_than_the_pool_holds() -> None:
    num_slots, num_requests = 16384, 200
    random = Random(2)
    engine = make_engine(
        MODEL,
        Speculator(policy="autoregressive", budget=1, harvest_k=2),
        runner=FakeRunner(MODEL, num_slots=num_slots, max_model_len=512, checked=False),
        budget=1,
        max_batch_rows=512,
        max_running_requests=num_requests,
        max_waiting_requests=num_requests,
    )

    def a_round(number: int) -> int:
        requests = [
            make_request(
                f"{number}.{i}", [random.randrange(1, 60) for _ in range(random.randint(2, 120))], max_tokens=6
            )
            for i in range(num_requests)
        ]
        most = 0
        for request in requests:
            engine.add_request(request)
        while engine.has_work:
            engine.step()
            most = max(most, engine.stats().num_requests_running)
        engine.check_integrity()
        cache = engine._memory._cache
        assert cache is not None
        assert len(cache._queue) <= cache.num_cached <= num_slots
        assert engine.stats().kv_slots_used == 0
        return most

    held = []
    tracemalloc.start()
    for number in range(4):
        assert a_round(number) == num_requests
        # A ring that is full later than all else.
        engine.trace = StepTrace()
        # what is only waiting to be found
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # By the second round the pool is full of cached prompts. 100 bytes a request would show two rounds later.
    assert max(held[2:]) < held[1] + 200 * num_requests


@pytest.mark.parametrize("policy", ["goose", "anisotropic"])
def test_refused_and_cancelled_requests_leave_every_gauge_where_it_was(policy: str) -> None:
    num_requests = int(os.environ.get("GOOSE_CHURN", "300"))
    random = Random(3)
    engine = make_engine(
        MODEL,
        Speculator(policy=policy, budget=8, harvest_k=4),
        runner=FakeRunner(MODEL, num_slots=512),
        budget=8,
        max_batch_rows=64,
        max_running_requests=6,
        max_waiting_requests=12,
    )
    alive: list[str] = []
    refused = 0
    for number in range(num_requests):
        prompt = [1, 2, 3, 4, 5] * random.randint(0, 8) + [
            random.randrange(1, 64) for _ in range(random.randint(0, 40))
        ]
        malformed = random.random() < 0.3
        request = make_request(
            str(number),
            [*prompt, 64] if malformed else [*prompt, 7],
            max_tokens=random.randint(1, 60),
            temperature=random.choice([0.0, 0.9]),
            seed=number,
        )
        if malformed:
            with pytest.raises(InvalidRequestError):
                engine.add_request(request)
            refused += 1
        else:
            engine.add_request(request)
            alive.append(request.request_id)
        for _ in range(random.randint(0, 3)):
            ended = {output.request_id for output in engine.step() if output.finish_reason}
            alive = [request_id for request_id in alive if request_id not in ended]
        while alive and (len(alive) > 10 or random.random() < 0.5):
            engine.cancel(alive.pop(random.randrange(len(alive))))
        if number % 20 == 0:
            engine.check_integrity()
    for request_id in alive:
        engine.cancel(request_id)
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.kv_slots_used, stats.num_requests_running, stats.num_requests_waiting) == (0, 0, 0)
    assert sum(stats.finished_by_reason.values()) == num_requests - refused
    assert stats.finished_by_reason["abort"] > num_requests / 4
    assert stats.num_draft_errors == 0
    assert stats.prefix_cache_hits > 0
