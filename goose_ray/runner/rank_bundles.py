"""The bundles of a placement group that a gang's ranks go into. Knows Ray's resources, and no process in them."""

from dataclasses import dataclass
from typing import Any

import ray
from ray.util import get_current_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from goose_ray.errors import ConfigError

__all__ = ["RankBundles"]

_PLACEMENT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class RankBundles:
    """Rank r goes into bundle `first + r`."""

    group: PlacementGroup
    first: int
    # made for the gang alone, and removed with it
    is_own: bool

    @classmethod
    def find(cls, num_ranks: int, *, device: str, strategy: str, cpus_per_rank: float) -> "RankBundles":
        """Bundles 1 to `num_ranks` of the placement group that this process is in (a Serve replica: bundle 0 is its
        own), or, outside of one, a placement group made for the purpose by `strategy` and `cpus_per_rank`.

        Raises ConfigError naming what is too little.
        """
        current = get_current_placement_group()
        if current is None:
            return cls(_new_group(num_ranks, device, strategy, cpus_per_rank), 0, is_own=True)
        _check(current.bundle_specs, num_ranks, device)
        return cls(current, 1, is_own=False)

    def num_cpus(self, rank: int) -> float:
        return float(self.group.bundle_specs[self.first + rank].get("CPU", 0))

    def remove(self) -> None:
        """Gives the place back if it is the gang's own."""
        if self.is_own and ray.is_initialized():
            remove_placement_group(self.group)


def _new_group(num_ranks: int, device: str, strategy: str, num_cpus: float) -> PlacementGroup:
    bundle = {"CPU": num_cpus, **({"GPU": 1.0} if device == "cuda" else {})}
    group = placement_group([bundle] * num_ranks, strategy=strategy)
    if not group.wait(_PLACEMENT_TIMEOUT_S):
        remove_placement_group(group)
        free = ray.available_resources()
        raise ConfigError(
            f"no place for {num_ranks} ranks of {bundle} each ({strategy}): the cluster has {free.get('CPU', 0):g} "
            f"CPUs and {free.get('GPU', 0):g} GPUs free"
        )
    return group


def _check(bundles: list[dict[str, Any]], num_ranks: int, device: str) -> None:
    if len(bundles) < 1 + num_ranks:
        raise ConfigError(
            f"tensor_parallel_size {num_ranks} needs {1 + num_ranks} placement_group_bundles, the replica's and one a "
            f"rank, not {len(bundles)}"
        )
    for rank, bundle in enumerate(bundles[1 : 1 + num_ranks]):
        if device == "cuda" and bundle.get("GPU", 0) < 1:
            raise ConfigError(f"the bundle of rank {rank}, {bundle}, has no GPU: give it one, or say device: cpu")
