"""Where the ranks of a tensor-parallel replica go: the bundles of its placement group, as the cluster is.

Knows Ray's resources, and nothing of what ranks do.
"""

from typing import Any

import ray

from goose_ray.config import GooseConfig
from goose_ray.errors import ConfigError

__all__ = ["gang_device", "gang_placement"]

# The replica's own bundle: what `ray_actor_options` of the deployment may ask for.
_REPLICA_CPUS = 1.0
_LEAST_RANK_CPUS = 0.1


def gang_device(config: GooseConfig) -> str:
    """`auto` is cuda where the cluster has GPUs. Raises ConfigError where it has some, but too few for one replica."""
    if config.device != "auto":
        return config.device
    gpus = sum(node.get("GPU", 0) for node in _nodes())
    if gpus and gpus < config.tensor_parallel_size:
        raise ConfigError(
            f"tensor_parallel_size {config.tensor_parallel_size} needs as many GPUs, the cluster has {gpus:g}: take "
            "fewer ranks, or say device: cuda if the cluster will grow, or device: cpu"
        )
    return "cuda" if gpus else "cpu"


def gang_placement(config: GooseConfig) -> dict[str, Any]:
    """Options of the deployment: bundle 0 is the replica's, 1 to `tensor_parallel_size` are the ranks'.

    A rank counts as one CPU, or as its part of what the replica leaves of the largest machine: two ranks also fit a
    machine of two CPUs.
    """
    largest = max((node.get("CPU", 0) for node in _nodes()), default=0)
    share = int(10 * (largest - _REPLICA_CPUS) / config.tensor_parallel_size) / 10
    rank = {"CPU": min(1.0, max(share, _LEAST_RANK_CPUS)) if largest else 1.0}
    if config.device == "cuda":
        rank["GPU"] = 1.0
    return {
        "placement_group_bundles": [{"CPU": _REPLICA_CPUS}, *[rank] * config.tensor_parallel_size],
        "placement_group_strategy": config.tensor_parallel_strategy,
    }


def _nodes() -> list[dict[str, float]]:
    """The resources of each living node; none outside a cluster."""
    if not ray.is_initialized():
        return []
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
