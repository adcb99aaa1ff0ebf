"""How long a step takes: the roofline of a rank, its reductions, and the engine.

A rank reads its weights and the context's KV once, and multiplies each row by its weights: the slower of the two is the
step's time on the GPU. Two reductions a layer come to it, and the host's work. What part of a data sheet's figures is
reached, and what a reduction's start and the host take, are assumptions, stated here; calibrate before promising.
"""

from dataclasses import dataclass

from goose_ray.plan.architecture import Architecture
from goose_ray.plan.gpus import Gpu
from goose_ray.plan.memory import kv_bytes_per_token

__all__ = ["HOST_S", "Assumptions", "StepTime", "step_time"]

HOST_S = 1.5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Parts of the data sheets' figures that are reached, and seconds."""

    bandwidth: float = 0.8
    flops: float = 0.6
    link: float = 0.6
    # of one reduction, however small; the ranks start together
    reduction_s: float = 10e-6
    # drafting, batching, sending and sampling of a step
    host_s: float = HOST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds. Memory and arithmetic overlap, the others do not."""

    memory: float
    arithmetic: float
    reductions: float
    host: float

    @property
    def total(self) -> float:
        return max(self.memory, self.arithmetic) + self.reductions + self.host


def step_time(
    of_model: Architecture,
    gpu: Gpu,
    *,
    num_ranks: int,
    itemsize: int,
    rows: int,
    sequences: int,
    context: int,
    assumed: Assumptions,
) -> StepTime:
    """A step of `rows` tree nodes, over sequences that have `context` tokens each, at the slowest rank."""
    share = of_model.share(0, num_ranks)
    kv_bytes = sequences * context * kv_bytes_per_token(of_model, share, itemsize)
    # Two products a row, layer, head and token of context: scores, and values; each a multiplication and an addition.
    attention = 4 * rows * context * share.query_heads * of_model.head_dim * of_model.num_hidden_layers
    reductions = 0.0
    if num_ranks > 1:
        # A ring sends and receives each (n - 1) / n of the states twice; the link's figure is of both directions.
        sent = 2 * (num_ranks - 1) / num_ranks * rows * of_model.hidden_size * itemsize
        each = assumed.reduction_s + sent / (gpu.link / 2 * assumed.link)
        reductions = 2 * of_model.num_hidden_layers * each
    return StepTime(
        memory=(share.multiplied * itemsize + kv_bytes) / (gpu.bandwidth * assumed.bandwidth),
        arithmetic=(2 * rows * share.multiplied + attention) / (gpu.flops * assumed.flops),
        reductions=reductions,
        host=assumed.host_s,
    )
