"""Where the ranks of a tensor-parallel replica go: the bundles of its placement group, as the cluster is.

Knows Ray's resources, and nothing of what ranks do.
"""

import logging
from collections.abc import Sequence
from typing import Any

import ray

from goose_ray.config import GooseConfig
from goose_ray.errors import ConfigError

__all__ = ["gang_device", "gang_placement"]

_logger = logging.getLogger(__name__)

Resources = dict[str, float]

# The replica's own bundle: what `ray_actor_options` of the deployment may ask for.
_REPLICA_CPUS = 1.0
_LEAST_RANK_CPUS = 0.1
# Of tenths of a CPU, in floats.
_ROUNDING = 1e-6


def gang_device(config: GooseConfig) -> str:
    """`auto` is cuda where the cluster has GPUs.

    A gang that the cluster has no place for is refused with `auto`, by a ConfigError that names what it has; with a
    device that is named that is logged, since the cluster may grow.
    """
    nodes = _nodes()
    gpus = sum(node.get("GPU", 0) for node in nodes)
    if config.device == "auto" and gpus and gpus < config.tensor_parallel_size:
        raise ConfigError(
            f"tensor_parallel_size {config.tensor_parallel_size} needs as many GPUs, the cluster has {gpus:g}: take "
            "fewer ranks, or say device: cuda if the cluster will grow, or device: cpu"
        )
    device = config.device if config.device != "auto" else "cuda" if gpus else "cpu"
    bundles = _bundles(config, device, nodes)
    if nodes and not _has_place(bundles, config.tensor_parallel_strategy, nodes):
        what = (
            f"no place for tensor_parallel_size {config.tensor_parallel_size} with tensor_parallel_strategy "
            f"{config.tensor_parallel_strategy}: it takes {_text(bundles[0])} for the replica and {_text(bundles[1])} "
            f"for each rank, and the nodes of the cluster have {', '.join(_text(node) for node in nodes)}"
        )
        if config.device == "auto":
            raise ConfigError(
                f"{what}. Take fewer ranks or another strategy, or say device: {device} if the cluster will grow"
            )
        _logger.warning("%s. The replica waits until the cluster has grown", what)
    return device


def gang_placement(config: GooseConfig) -> dict[str, Any]:
    """Options of the deployment: bundle 0 is the replica's, 1 to `tensor_parallel_size` are the ranks'. The device is
    one that is named.

    A rank counts as one CPU, or as its part of what the replica leaves of the largest machine: two ranks also fit a
    machine of two CPUs.
    """
    return {
        "placement_group_bundles": _bundles(config, config.device, _nodes()),
        "placement_group_strategy": config.tensor_parallel_strategy,
    }


def _bundles(config: GooseConfig, device: str, nodes: Sequence[Resources]) -> list[Resources]:
    largest = max((node.get("CPU", 0) for node in nodes), default=0)
    share = int(10 * (largest - _REPLICA_CPUS) / config.tensor_parallel_size) / 10
    rank = {"CPU": min(1.0, max(share, _LEAST_RANK_CPUS)) if largest else 1.0}
    if device == "cuda":
        rank["GPU"] = 1.0
    return [{"CPU": _REPLICA_CPUS}, *[rank] * config.tensor_parallel_size]


def _has_place(bundles: Sequence[Resources], strategy: str, nodes: Sequence[Resources]) -> bool:
    """Whether nodes with nothing else on them could hold the bundles."""
    replica, rank = bundles[0], bundles[1]
    num_ranks = len(bundles) - 1
    for index, host in enumerate(nodes):
        if not _times(host, replica):
            continue
        beside = _times({name: amount - replica.get(name, 0) for name, amount in host.items()}, rank)
        elsewhere = [_times(node, rank) for node in [*nodes[:index], *nodes[index + 1 :]]]
        if strategy == "STRICT_SPREAD":
            room = sum(times > 0 for times in elsewhere)
        else:
            room = beside if strategy == "STRICT_PACK" else beside + sum(elsewhere)
        if room >= num_ranks:
            return True
    return False


def _times(node: Resources, bundle: Resources) -> int:
    """How often a bundle fits a node."""
    return min(int(node.get(name, 0) / amount + _ROUNDING) for name, amount in bundle.items())


def _text(resources: Resources) -> str:
    return f"({', '.join(f'{name} {resources[name]:g}' for name in ('CPU', 'GPU') if name in resources)})"


def _nodes() -> list[Resources]:
    """The resources of each living node; none outside a cluster."""
    if not ray.is_initialized():
        return []
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
