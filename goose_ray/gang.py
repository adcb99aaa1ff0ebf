"""The runner of a replica whose model is spread over ranks, from the configuration.

Knows how the ranks load the model; `goose_ray.runner.worker_group` knows how they run it.
"""

import torch

from goose_ray.config import GooseConfig
from goose_ray.models.shard_source import CheckpointSource
from goose_ray.runner.rank_bundles import RankBundles
from goose_ray.runner.rank_gang import GangOptions, RankGang
from goose_ray.runner.worker_group import WorkerGroup

__all__ = ["start_gang"]


def start_gang(config: GooseConfig, *, device: str, dtype: torch.dtype, cpus_per_rank: float = 1.0) -> WorkerGroup:
    """Brings the ranks up and has them load the model, in the bundles of this process' placement group or, outside of
    one, in some of their own of `cpus_per_rank` each.

    Raises ConfigError or ModelLoadError naming the rank and the cause.
    """
    size = config.tensor_parallel_size
    bundles = RankBundles.find(
        size, device=device, strategy=config.tensor_parallel_strategy, cpus_per_rank=cpus_per_rank
    )
    options = GangOptions(
        num_ranks=size,
        device=device,
        # those of the replica, divided among its ranks
        num_threads=max(1, (config.engine.num_threads or size) // size),
        # with the engine at least, which drafts while the ranks wait
        shares_cores=device == "cpu",
    )
    return WorkerGroup(
        RankGang(options, bundles),
        # on the rank's own host, where the model may have to be fetched first
        CheckpointSource(config.model, dtype),
        model_id=config.model,
        num_slots=config.engine.kv_cache_tokens,
        max_model_len=config.engine.max_model_len,
        attention_backend=config.attention_backend,
        silence_s=config.rank_silent_after_s,
    )
