"""The plan of one deployment file on one kind of GPU."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from goose_ray.config import GooseConfig
from goose_ray.plan.architecture import Architecture, read_config
from goose_ray.plan.budget import BudgetPlan, best_budget
from goose_ray.plan.gpus import find_gpu
from goose_ray.plan.latency import Assumptions, step_time
from goose_ray.plan.memory import RankMemory, rank_memory

__all__ = ["SEQUENCES", "DeploymentPlan", "plan_deployment"]

_NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SEQUENCES = (1, 8, 32)
# float32 is what the CPU has; on a GPU `auto` is bfloat16.
_ITEM_SIZES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
_SIZES_TRIED = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPlan:
    model: str
    gpu: str
    num_ranks: int
    itemsize: int
    kv_cache_tokens: int
    context: int
    memory: RankMemory
    # seconds of a step of one sequence, by nodes
    step_s: Mapping[int, float]
    budgets: tuple[BudgetPlan, ...]
    # smallest number of ranks on this GPU with which it would fit as it stands, None if there is none
    fits_with_ranks: int | None

    @property
    def fits(self) -> bool:
        return not self.memory.missing

    def refusal(self) -> str | None:
        """Why it cannot run, by how much and what would help; None if it fits."""
        if self.fits:
            return None
        gib = f"{self.memory.missing / 2**30:.2f} GiB a rank"
        remedies = []
        if tokens := self.memory.kv_tokens_that_fit:
            remedies.append(f"engine.kv_cache_tokens of at most {tokens}")
        if self.fits_with_ranks is not None:
            remedies.append(f"tensor_parallel_size {self.fits_with_ranks}")
        return (
            f"{self.model} does not fit {self.gpu} at tensor_parallel_size {self.num_ranks}: {gib} are missing. "
            f"{'It would with ' + ' or '.join(remedies) if remedies else 'It needs GPUs with more memory'}"
        )

    def as_json(self) -> dict[str, Any]:
        memory = {**asdict(self.memory), "total": self.memory.total, "missing": self.memory.missing}
        return {
            "model": self.model,
            "gpu": self.gpu,
            "tensor_parallel_size": self.num_ranks,
            "fits": self.fits,
            "refusal": self.refusal(),
            "bytes_per_rank": memory,
            "kv_cache_tokens": self.kv_cache_tokens,
            "kv_tokens_that_fit": self.memory.kv_tokens_that_fit,
            "context": self.context,
            "step_ms_by_nodes": {str(nodes): round(1e3 * s, 3) for nodes, s in self.step_s.items()},
            "budgets": [asdict(budget) for budget in self.budgets],
        }


def plan_deployment(
    config: GooseConfig, gpu_name: str, *, context: int = 2048, assumed: Assumptions | None = None
) -> DeploymentPlan:
    """Raises ConfigError if the GPU, the model or the division is not known or not possible."""
    gpu = find_gpu(gpu_name)
    of_model = Architecture.from_config(read_config(config.model))
    itemsize, ranks = _ITEM_SIZES[config.dtype], config.tensor_parallel_size
    engine = config.engine
    longest = min(context, of_model.max_position_embeddings, engine.max_model_len or context)

    def memory(num_ranks: int) -> RankMemory:
        return rank_memory(
            of_model,
            num_ranks=num_ranks,
            itemsize=itemsize,
            kv_cache_tokens=engine.kv_cache_tokens,
            max_batch_rows=engine.max_batch_rows,
            max_sequences=engine.max_running_requests,
            available=gpu.memory_bytes,
        )

    def seconds(rows: int, sequences: int, tokens: int) -> float:
        return step_time(
            of_model,
            gpu,
            num_ranks=ranks,
            itemsize=itemsize,
            rows=rows,
            sequences=sequences,
            context=tokens,
            assumed=assumed or Assumptions(),
        ).total

    def budget(sequences: int) -> BudgetPlan:
        tokens = min(longest, engine.kv_cache_tokens // sequences)
        return best_budget(sequences, tokens, engine.max_batch_rows, lambda rows: seconds(rows, sequences, tokens))

    return DeploymentPlan(
        model=config.model,
        gpu=gpu_name,
        num_ranks=ranks,
        itemsize=itemsize,
        kv_cache_tokens=engine.kv_cache_tokens,
        context=longest,
        memory=memory(ranks),
        step_s={nodes: seconds(nodes, 1, longest) for nodes in _NODES if nodes <= engine.max_batch_rows},
        budgets=tuple(budget(count) for count in SEQUENCES if count <= engine.max_running_requests),
        fits_with_ranks=next(
            (n for n in _SIZES_TRIED if ranks < n <= of_model.num_key_value_heads and not memory(n).missing), None
        ),
    )
