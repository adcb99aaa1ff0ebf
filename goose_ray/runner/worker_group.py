"""The ModelRunner of a model that is spread over a gang of ranks.

Every step goes to all ranks and is answered by rank 0, which alone decides. Rank r is a Ray actor in a bundle of the
placement group that this process is in (a Serve replica: bundle 0 is its own), or of one made for the purpose.
"""

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util import get_current_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup
from transformers import PreTrainedModel

from goose_ray.engine.step import ModelSpec, StepBatch, StepOutput
from goose_ray.errors import ConfigError
from goose_ray.runner.checks import BatchChecker
from goose_ray.runner.rank_gang import GangOptions, RankGang
from goose_ray.runner.rank_leash import Leash, LeashWatch
from goose_ray.runner.step_channel import ChannelListener, StepDriver

__all__ = ["WorkerGroup"]

_logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 60.0
_PLACEMENT_TIMEOUT_S = 60.0


class WorkerGroup:
    """Implements `goose_ray.engine.step.ModelRunner`.

    A rank that dies, or is silent for `silence_s`, ends the step under way and is the end of the whole gang: its
    processes are killed, and every call raises EngineDeadError naming the rank.

    `strategy` and `cpus_per_rank` are for a placement group of its own. Raises ConfigError or ModelLoadError naming the
    rank that could not be brought up, and why.
    """

    def __init__(
        self,
        load_model: Callable[[], PreTrainedModel],
        *,
        model_id: str,
        num_slots: int,
        max_model_len: int | None,
        attention_backend: str,
        options: GangOptions,
        silence_s: float,
        strategy: str = "PACK",
        cpus_per_rank: float = 1.0,
    ) -> None:
        self._own_group: PlacementGroup | None = None
        group = get_current_placement_group()
        first = 1
        if group is None:
            group = self._own_group = _new_group(options, strategy, cpus_per_rank)
            first = 0
        _check_bundles(group, first, options)
        self._is_shut_down = False
        self._gang: RankGang | None = None
        try:
            self._gang = RankGang(options, group, range(first, first + options.num_ranks))
            self._spec: ModelSpec = self._load(
                load_model,
                model_id=model_id,
                num_slots=num_slots,
                max_model_len=max_model_len,
                attention_backend=attention_backend,
            )
            self._checker = BatchChecker(self._spec)
            self._driver, self._watch = self._connect(self._gang, silence_s)
        except BaseException:
            self._end()
            raise

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def rank_pids(self) -> list[int]:
        """Of the ranks' processes, in rank order, each on its own host; empty once they are gone."""
        return [] if self._gang is None else self._gang.pids

    def execute(self, batch: StepBatch) -> StepOutput:
        """One forward; see ModelRunner. Raises ValueError on bad arrays, before any rank has seen them."""
        self._checker.check(batch)
        return self._driver.step(batch)

    def check_health(self) -> None:
        """Raises EngineDeadError naming the rank that is dead, or after `shutdown`."""
        self._driver.check_alive()

    def shutdown(self) -> None:
        """Frees the ranks' memory by ending them. Idempotent."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._watch.free()
        self._driver.close()
        self._end()

    def _load(self, load_model: Callable[[], PreTrainedModel], **options: Any) -> ModelSpec:
        assert self._gang is not None
        started_s = time.monotonic()
        specs: list[ModelSpec] = self._gang.call("load", load_model, **options)
        _logger.info("%d ranks hold %s after %.1f s", len(specs), specs[0].model_id, time.monotonic() - started_s)
        return specs[0]

    def _connect(self, gang: RankGang, silence_s: float) -> tuple[StepDriver, LeashWatch]:
        listener = ChannelListener(ray.util.get_node_ip_address(), token=secrets.token_bytes(32))
        try:
            gang.start("follow", listener.address)
            found = listener.accept(gang.num_ranks, (StepDriver.KIND, Leash.KIND), timeout_s=_CONNECT_TIMEOUT_S)
        finally:
            listener.close()
        driver = StepDriver(found[StepDriver.KIND])

        def lose(rank: int, what: str) -> None:
            _logger.critical("rank %d %s: the gang ends", rank, what)
            driver.fail(f"rank {rank} {what}")
            gang.kill()

        return driver, LeashWatch(found[Leash.KIND], lose, silence_s=silence_s)

    def _end(self) -> None:
        if self._gang is not None:
            self._gang.kill()
        if self._own_group is not None:
            remove_placement_group(self._own_group)
            self._own_group = None


def _new_group(options: GangOptions, strategy: str, num_cpus: float) -> PlacementGroup:
    bundle = {"CPU": num_cpus, **({"GPU": 1} if options.device == "cuda" else {})}
    group = placement_group([bundle] * options.num_ranks, strategy=strategy)
    if not group.wait(_PLACEMENT_TIMEOUT_S):
        remove_placement_group(group)
        raise ConfigError(
            f"no place for {options.num_ranks} ranks of {bundle} each ({strategy}): the cluster has "
            f"{_resources('CPU')} CPUs and {_resources('GPU')} GPUs free"
        )
    return group


def _check_bundles(group: PlacementGroup, first: int, options: GangOptions) -> None:
    bundles = group.bundle_specs
    if len(bundles) < first + options.num_ranks:
        raise ConfigError(
            f"tensor_parallel_size {options.num_ranks} needs {first + options.num_ranks} placement_group_bundles, "
            f"the replica's and one a rank, not {len(bundles)}"
        )
    for rank in range(options.num_ranks):
        bundle = bundles[first + rank]
        if options.device == "cuda" and bundle.get("GPU", 0) < 1:
            raise ConfigError(f"the bundle of rank {rank}, {bundle}, has no GPU: give it one, or say device: cpu")


def _resources(name: str) -> float:
    return float(ray.available_resources().get(name, 0))
