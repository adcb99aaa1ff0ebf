"""The processes of a gang: Ray actors, one a rank, in the bundles of a placement group. Brings them up and ends them.

Knows what they are asked in which order and how they fail, not what a model is.
"""

import contextlib
import logging
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from goose_ray.errors import ConfigError, GooseRayError, ModelLoadError
from goose_ray.runner.comm_build import build_environment
from goose_ray.runner.rank_bundles import RankBundles
from goose_ray.runner.rank_place import GangPlace, RankPlace
from goose_ray.runner.worker import TensorParallelRank

__all__ = ["GangOptions", "RankGang"]

_logger = logging.getLogger(__name__)

_PLACE_TIMEOUT_S = 120.0
_PROGRESS_PERIOD_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOptions:
    """`num_threads` are the CPU threads of one rank's forward, `shares_cores` whether others want its cores too."""

    num_ranks: int
    # "cpu" or "cuda"
    device: str
    num_threads: int
    shares_cores: bool
    # Of meeting each other, and of every collective from then on; the first start on a machine compiles meanwhile.
    timeout_s: float = 600.0


class RankGang:
    """Raises what the first rank to fail raises, with its number."""

    def __init__(self, options: GangOptions, bundles: RankBundles) -> None:
        self.num_ranks = options.num_ranks
        self._bundles = bundles
        started_s = time.monotonic()
        actor = ray.remote(max_restarts=0, max_task_retries=0)(TensorParallelRank)
        self._actors = [
            actor.options(
                num_cpus=bundles.num_cpus(rank),
                num_gpus=1 if options.device == "cuda" else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    bundles.group,
                    placement_group_bundle_index=bundles.first + rank,
                    placement_group_capture_child_tasks=True,
                ),
                runtime_env={"env_vars": _environment(options)},
            ).remote(rank, options.device, options.num_threads)
            for rank in range(options.num_ranks)
        ]
        self._places: list[RankPlace] = []
        try:
            self._places = self.call("place", timeout_s=_PLACE_TIMEOUT_S)
            self._join(options)
        except BaseException:
            self.kill()
            raise
        _logger.info(
            "%d ranks on %d hosts have met after %.1f s", self.num_ranks, self.num_hosts, time.monotonic() - started_s
        )

    @property
    def num_hosts(self) -> int:
        """Nodes of Ray's; several may be on one machine."""
        return len({place.node_id for place in self._places})

    @property
    def addresses(self) -> set[str]:
        """Of the hosts that the ranks are on."""
        return {place.host for place in self._places}

    @property
    def pids(self) -> list[int]:
        """In rank order; on whatever host each is."""
        return [place.pid for place in self._places]

    def call(self, method: str, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> list[Any]:
        """Calls a method of all ranks; their results in rank order."""
        pending = {getattr(actor, method).remote(*args, **kwargs): rank for rank, actor in enumerate(self._actors)}
        return self._results(method, pending, timeout_s)

    def start(self, method: str, *args: Any) -> None:
        """Calls a method of all ranks, and waits for none."""
        for actor in self._actors:
            getattr(actor, method).remote(*args)

    def kill(self) -> None:
        """Ends the processes, also those that are stopped or spin. Idempotent."""
        here = ray.get_runtime_context().get_node_id() if ray.is_initialized() else None
        for place in self._places:
            if place.node_id == here:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(place.pid, signal.SIGKILL)
        self._places = []
        for actor in self._actors:
            with contextlib.suppress(RayError):
                ray.kill(actor)
        if self._actors:
            self._bundles.remove()
        self._actors = []

    def _join(self, options: GangOptions) -> None:
        host = self._places[0].host
        opened = self._actors[0].open_store.remote(host, options.timeout_s)
        (port,) = self._results("open_store", {opened: 0}, _PLACE_TIMEOUT_S)
        per_node = Counter(place.node_id for place in self._places)
        seen: Counter[str] = Counter()
        pending = {}
        for rank, (actor, place) in enumerate(zip(self._actors, self._places, strict=True)):
            gang_place = GangPlace(
                rank=rank,
                num_ranks=options.num_ranks,
                # of CUDA devices a rank sees its own alone
                local_rank=0 if options.device == "cuda" else seen[place.node_id],
                num_local=per_node[place.node_id],
                host=host,
                port=port,
                timeout_s=options.timeout_s,
            )
            seen[place.node_id] += 1
            pending[actor.join.remote(gang_place)] = rank
        self._results("join", pending, options.timeout_s)

    def _results(self, what: str, pending: dict[Any, int], timeout_s: float | None) -> list[Any]:
        started_s = time.monotonic()
        results: dict[int, Any] = {}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=_PROGRESS_PERIOD_S)
            for reference in ready:
                rank = pending.pop(reference)
                try:
                    results[rank] = ray.get(reference)
                except RayError as error:
                    raise _as_ours(rank, what, error) from error
            waited_s = time.monotonic() - started_s
            if pending and not ready:
                _logger.info("%s: still waiting for ranks %s after %.0f s", what, sorted(pending.values()), waited_s)
            if pending and timeout_s is not None and waited_s > timeout_s:
                raise ModelLoadError(
                    f"ranks {sorted(pending.values())} did not answer {what!r} in {waited_s:.0f} s: see `ray status` "
                    "for resources that are wanting, and the logs of the ranks"
                )
        return [results[rank] for rank in sorted(results)]


def _environment(options: GangOptions) -> dict[str, str]:
    environment = {
        **build_environment(),
        "DS_ACCELERATOR": options.device,
        "OMP_NUM_THREADS": str(options.num_threads),
    }
    if options.shares_cores:
        # Threads that wait spinning starve the other ranks.
        environment["OMP_WAIT_POLICY"] = "passive"
    return environment


def _as_ours(rank: int, what: str, error: RayError) -> GooseRayError:
    if isinstance(error, RayTaskError):
        cause = error.cause
        message = f"rank {rank}: {cause if isinstance(cause, GooseRayError) else error}"
        return ConfigError(message) if isinstance(cause, ConfigError) else ModelLoadError(message)
    if isinstance(error, RayActorError):
        return ModelLoadError(
            f"rank {rank} died in {what!r}: {error}. Its log says more; a process that was killed without a word was "
            "often one too large for the memory"
        )
    return ModelLoadError(f"rank {rank} failed in {what!r}: {error}")
