"""What it costs to have ranks take a step: our channel beside plain actor calls, without a model.

Both hand the same step to every rank and wait for an answer; they take turns, so that whatever else the machine does
meets both alike. Needs a Ray cluster of this process.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import ray

from goose_ray.engine.probes import Probe, tree_batch
from goose_ray.engine.step import HarvestRows, StepBatch, StepOutput, VerifiedPath
from goose_ray.runner.step_channel import ChannelAddress, ChannelListener, StepDriver, StepFollower

__all__ = ["ChannelCost", "measure_channel"]

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCost:
    """Medians over the steps, in milliseconds: until rank 0 has answered, or every rank has (actor calls)."""

    channel_ms: float
    actor_calls_ms: float

    @property
    def ratio(self) -> float:
        return self.channel_ms / self.actor_calls_ms


class _Rank:
    """Takes no time over a step."""

    def __init__(self, rank: int, output: StepOutput) -> None:
        self._rank = rank
        self._output = output if rank == 0 else None

    def step(self, batch: StepBatch) -> StepOutput | None:
        return self._output

    def follow(self, address: ChannelAddress) -> None:
        StepFollower.connect(address, self._rank).follow(self.step)


def measure_channel(
    *,
    num_ranks: int,
    sequences: int,
    nodes: int,
    context: int,
    rounds: int,
    steps: int,
    on_round: Callable[[], object] = lambda: None,
) -> ChannelCost:
    """`steps` of each way in each round, of `sequences` with `context` tokens and trees of `nodes`."""
    batch = _batch(sequences, nodes, context)
    output = _output(batch)
    actor = ray.remote(num_cpus=0)(_Rank)
    called, followers = ([actor.remote(rank, output) for rank in range(num_ranks)] for _ in range(2))
    ray.get([one.step.remote(batch) for one in (*called, *followers)])
    driver = _connect(followers)
    ways: dict[str, Callable[[], Any]] = {
        "channel": lambda: driver.step(batch),
        "actor_calls": lambda: ray.get([one.step.remote(batch) for one in called]),
    }
    taken_s: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for _ in range(rounds):
            for name, way in ways.items():
                for _ in range(steps):
                    started_s = time.perf_counter()
                    way()
                    taken_s[name].append(time.perf_counter() - started_s)
            on_round()
    finally:
        driver.close()
        for one in (*called, *followers):
            ray.kill(one)
    return ChannelCost(**{f"{name}_ms": median(values) * 1e3 for name, values in taken_s.items()})


def _connect(followers: Sequence[Any]) -> StepDriver:
    listener = ChannelListener(ray.util.get_node_ip_address(), token=secrets.token_bytes(32))
    try:
        for one in followers:
            one.follow.remote(listener.address)
        found = listener.accept(len(followers), (StepDriver.KIND,), timeout_s=_TIMEOUT_S)
    finally:
        listener.close()
    return StepDriver(found[StepDriver.KIND])


def _batch(sequences: int, nodes: int, context: int) -> StepBatch:
    slots = np.arange(sequences * context)
    probes = [Probe(f"request-{i}", slots[i * context : (i + 1) * context]) for i in range(sequences)]
    return tree_batch(probes, nodes, len(slots) + np.arange(sequences * nodes), harvest_k=10)


def _output(batch: StepBatch) -> StepOutput:
    """Of the size that a real one has: two accepted tokens a sequence, successors at every row."""
    path = VerifiedPath(np.arange(1, 3), np.arange(3))
    rows = np.arange(batch.num_rows)
    top = np.tile(np.arange(batch.harvest_k), (batch.num_rows, 1))
    return StepOutput(
        paths=(path,) * len(batch.sequences),
        harvest=HarvestRows(rows, top, top.astype(np.float32)),
        forward_s=0.0,
    )
