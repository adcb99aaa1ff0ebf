"""Forwards of few rows, recorded once for each shape and run again: a CUDA graph launches as one.

A step is copied into the memory that its shape's recording reads, padded with rows that hold token 0 at position 0,
see nothing and write to the scratch slot; what comes out at the batch's own rows is the forward's result. How a
forward is recorded is the recorder's business: on CUDA it is captured, elsewhere simply called again, so that all but
the capture runs anywhere.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol

import torch

from goose_ray.engine.step import StepBatch
from goose_ray.runner.attention import ShapeT, StaticAttentionBackend, StaticStepAttention, StepAttention
from goose_ray.runner.kv_pool import KVPool

__all__ = ["BodyForward", "RecordedForwards", "Recorder", "call_again", "capture"]

_logger = logging.getLogger(__name__)

# Larger forwards are bound by the device, not by the launching of their kernels.
_MAX_ROWS = 256
# Compiling and autotuning must be over before a capture.
_WARM_UPS = 2

Forward = Callable[[], torch.Tensor]


class Recorder(Protocol):
    """Takes a forward over memory that stays, which has not run yet, and gives what runs it again."""

    def __call__(self, forward: Forward) -> Forward: ...


class BodyForward(Protocol):
    """The model below its head: token ids and positions, [1, T] int64 each -> [T, hidden_size]."""

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor: ...


def capture(forward: Forward) -> Forward:
    """A Recorder: as a CUDA graph. Raises RuntimeError if the forward waits for the device, as some experts do."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            forward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = forward()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


def call_again(forward: Forward) -> Forward:
    """A Recorder that records nothing."""
    return forward


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    """One shape's memory, and the forward over it."""

    # [1, num_rows] int64
    token_ids: torch.Tensor
    # [1, num_rows] int64
    positions: torch.Tensor
    step: StaticStepAttention
    run: Forward

    def load(self, batch: StepBatch) -> None:
        num_rows = batch.num_rows
        for held, new in ((self.token_ids, batch.token_ids), (self.positions, batch.positions)):
            held[:, :num_rows].copy_(torch.from_numpy(new))
            held[:, num_rows:] = 0
        self.step.load(batch)


class RecordedForwards(Generic[ShapeT]):
    """The recordings of one model over one pool, each made when its shape first occurs."""

    def __init__(
        self,
        body: BodyForward,
        backend: StaticAttentionBackend[ShapeT],
        pool: KVPool,
        recorder: Recorder,
        *,
        max_rows: int = _MAX_ROWS,
    ) -> None:
        self._body = body
        self._backend = backend
        self._pool = pool
        self._recorder = recorder
        self._max_rows = max_rows
        self._recordings: dict[ShapeT, _Recording] = {}
        self._is_refused = False

    @property
    def shapes(self) -> tuple[ShapeT, ...]:
        return tuple(self._recordings)

    def __call__(self, batch: StepBatch) -> torch.Tensor | None:
        """[T, hidden_size], valid until the next call; None if forwards of that size, or of this model, are not
        recorded.
        """
        shape = self._backend.shape_of(batch)
        if shape.num_rows > self._max_rows or self._is_refused:
            return None
        if shape in self._recordings:
            self._recordings[shape].load(batch)
        else:
            try:
                self._recordings[shape] = self._recorded(shape, batch)
            except RuntimeError as error:
                _logger.warning("forwards run without CUDA graphs, since this model's cannot be captured: %s", error)
                self._is_refused = True
                return None
        return self._recordings[shape].run()[: batch.num_rows]

    def _recorded(self, shape: ShapeT, batch: StepBatch) -> _Recording:
        device = self._pool.keys[0].device
        token_ids = torch.zeros(1, shape.num_rows, dtype=torch.int64, device=device)
        positions = torch.zeros_like(token_ids)
        step = self._backend.allocate(shape, self._pool)

        def forward() -> torch.Tensor:
            return self._body(token_ids, positions, step)

        unrecorded = _Recording(token_ids, positions, step, forward)
        unrecorded.load(batch)
        return _Recording(token_ids, positions, step, self._recorder(forward))
