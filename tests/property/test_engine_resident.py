"""Resident memory of a replica that serves on and on: what it needs it has once its pools are full.

`make slots` serves 10,000 requests.
"""

import os
import sys
from pathlib import Path
from random import Random

import pytest
from engine_helpers import make_request
from fakes import FakeTokenizer
from tiny_models import VOCAB_SIZE, tiny_model

from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.runner.local import LocalRunner

NUM_REQUESTS = int(os.environ.get("GOOSE_CHURN", "160"))
_AT_ONCE = 12
# Of the allocator: it gives pages back in its own time.
_NOISE_BYTES = 4 * 2**20
_BYTES_A_REQUEST = 2048


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("policy", ["goose", "anisotropic"])
def test_resident_memory_is_flat_once_the_pools_are_full(policy: str) -> None:
    random = Random(policy)
    engine = Engine(
        # In float32 oneDNN keeps something for every number of rows that comes up, which is another matter.
        LocalRunner(tiny_model("llama").double(), model_id="llama", num_slots=768),
        Speculator(policy=policy, budget=8, harvest_k=4, pool_tokens=400),
        FakeTokenizer(),
        EngineConfig(budget=8, max_batch_rows=128, max_running_requests=_AT_ONCE),
    )

    def serve(first: int, last: int) -> None:
        alive = 0
        while first < last or alive:
            while first < last and alive < _AT_ONCE:
                prompt = [random.randrange(1, VOCAB_SIZE) for _ in range(random.randint(2, 40))]
                engine.add_request(
                    make_request(str(first), prompt, max_tokens=random.randint(1, 8), temperature=first % 2, seed=first)
                )
                first, alive = first + 1, alive + 1
            alive -= sum(output.finish_reason is not None for output in engine.step())

    serve(0, NUM_REQUESTS // 2)
    before = resident_bytes()
    serve(NUM_REQUESTS // 2, NUM_REQUESTS)
    grown = resident_bytes() - before
    # Or else the pools were not full by then.
    assert engine.stats().prompt_tokens / 2 > 2 * engine.spec.num_slots
    assert grown < _NOISE_BYTES + _BYTES_A_REQUEST * NUM_REQUESTS / 2, f"{grown / NUM_REQUESTS * 2:.0f} bytes a request"
