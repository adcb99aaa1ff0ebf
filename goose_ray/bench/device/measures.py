"""What this engine does on a device: is each attention backend exact there, what does a forward take by rows and
context, are replies in float32 those of plain decoding.

Meant for the first hour on a GPU, and runs on the CPU too, where there is less to learn. Knows how to ask for a
runner, not how one is made.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from goose.policies.autoregressive import AutoregressivePolicy
from goose.speculator import Speculator
from goose_ray.bench.device.attention_cases import CASES, largest_error
from goose_ray.bench.replies import Reply, Session, greedy, hold
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.probes import Probe, chain_batch, tree_batch
from goose_ray.engine.step import ModelRunner
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.runner.backends import new_backend

__all__ = [
    "ROWS",
    "Exactness",
    "attention_errors",
    "device_name",
    "forward_milliseconds",
    "reply_exactness",
]

ROWS = (1, 8, 16, 32, 64, 128)
# Prefill rows at a time.
_CHUNK = 256
# Nodes of the trees whose replies are compared.
_NODES = 16


@dataclass(frozen=True, slots=True)
class Exactness:
    """Replies under trees against plain decoding with SDPA, token for token."""

    equal: int
    replies: int
    # tokens committed by a step of a sequence, on average: 1 would say that no draft was ever put to the test
    tau: float


def device_name(device: torch.device) -> str:
    """The card's name, or the CPU's as far as the system tells."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"


def attention_errors(name: str, *, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """By case, the backend's largest difference from SDPA in float32 on the CPU."""
    return {
        case.name: largest_error(case, new_backend(name, device, dtype), dtype=dtype, device=device) for case in CASES
    }


def forward_milliseconds(
    runner: ModelRunner,
    *,
    contexts: Sequence[int],
    rows: Sequence[int] = ROWS,
    rounds: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, dict[int, float]]:
    """Context -> rows of one sequence -> median milliseconds of a step, verification included.

    Contexts that pool or model are too small for are left out. The first round is the warm-up, in which kernels are
    compiled and forwards recorded.
    """
    spec = runner.spec
    largest = min(spec.num_slots, spec.max_model_len)
    found = {}
    for context in contexts:
        if context + max(rows) > largest:
            continue
        probe = Probe("device", np.arange(context))
        for start in range(0, context, _CHUNK):
            runner.execute(chain_batch([probe], start, _CHUNK, harvest_k=0))
        batches = {count: tree_batch([probe], count, context + np.arange(count), harvest_k=0) for count in rows}
        seconds: dict[int, list[float]] = {count: [] for count in rows}
        for number in range(rounds + 1):
            for count, batch in batches.items():
                started_s = clock()
                runner.execute(batch)
                if number:
                    seconds[count].append(clock() - started_s)
        found[context] = {count: 1e3 * median(seconds[count]) for count in rows}
    return found


def reply_exactness(
    runner: ModelRunner, plain: ModelRunner, tokenizer: Tokenizer, sessions: Sequence[Session], *, max_tokens: int
) -> Exactness:
    """All sessions at once, under trees in `runner`, and one token a step in `plain`."""
    drafted = _replies(runner, tokenizer, sessions, policy="goose", budget=_NODES, max_tokens=max_tokens)
    expected = _replies(plain, tokenizer, sessions, policy=AutoregressivePolicy.name, budget=1, max_tokens=max_tokens)
    equal = sum(drafted[key].token_ids == reply.token_ids for key, reply in expected.items())
    steps = sum(reply.stats.steps for reply in drafted.values())
    return Exactness(equal, len(expected), sum(reply.stats.committed for reply in drafted.values()) / max(1, steps))


def _replies(
    runner: ModelRunner, tokenizer: Tokenizer, sessions: Sequence[Session], *, policy: str, budget: int, max_tokens: int
) -> dict[tuple[str, int], Reply]:
    config = EngineConfig(policy=policy, budget=budget, max_running_requests=len(sessions), prefix_cache=False)
    engine = Engine(runner, Speculator(policy=policy, budget=budget, harvest_k=config.harvest_k), tokenizer, config)
    replies: dict[tuple[str, int], Reply] = {}

    def keep(reply: Reply) -> None:
        replies[reply.session_id, reply.turn] = reply

    hold(engine, sessions, greedy(max_tokens), concurrency=len(sessions), on_reply=keep)
    return replies
