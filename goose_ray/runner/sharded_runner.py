"""One rank's part of a step: the forward of its share of the model, then scores that rank 0 puts together.

The counterpart of `goose_ray.runner.local` where a model is spread over processes. Knows no channel: whoever has the
batch calls `execute` on all ranks, with the same batches in the same order.
"""

import time

import torch
import torch.distributed

from goose_ray.engine.step import StepBatch, StepOutput
from goose_ray.runner.forward import ModelForward
from goose_ray.runner.head import LanguageModelHead
from goose_ray.runner.sharded_scoring import RankGroup, score_shard, whole_rows
from goose_ray.runner.verification import step_output

__all__ = ["ShardRunner", "TorchRankGroup"]


class TorchRankGroup:
    """The RankGroup of torch.distributed's default process group."""

    def __init__(self) -> None:
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()

    def gather(self, part: torch.Tensor) -> torch.Tensor | None:
        if self.rank != 0:
            torch.distributed.gather(part, dst=0)
            return None
        parts = part.new_empty(self.size, *part.shape)
        torch.distributed.gather(part, list(parts.unbind(0)), dst=0)
        return parts


class ShardRunner:
    """`forward` and `head` hold this rank's share. Collective: the ranks wait for one another in every call."""

    def __init__(self, forward: ModelForward, head: LanguageModelHead, ranks: RankGroup) -> None:
        self._forward = forward
        self._head = head
        self._ranks = ranks

    def execute(self, batch: StepBatch) -> StepOutput | None:
        """None except on rank 0, which alone walks the trees and draws. The batch must have been checked."""
        started = time.perf_counter()
        with torch.inference_mode():
            scores = score_shard(batch, self._forward.hidden_states(batch), self._head, self._ranks)
            return None if scores is None else step_output(batch, scores, started=started)

    def logits(self, batch: StepBatch) -> torch.Tensor | None:
        """[T, vocab] float32 on rank 0, None elsewhere. For checks."""
        with torch.inference_mode():
            return whole_rows(self._head(self._forward.hidden_states(batch)), self._head, self._ranks)

    def release(self) -> None:
        """Frees weights and KV. Idempotent."""
        self._forward.release()
