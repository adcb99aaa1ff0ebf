"""The ModelRunner of a model that is spread over a gang of ranks.

Every step goes to all ranks and is answered by rank 0, which alone decides. Knows no placement and no DeepSpeed.
"""

import logging
import os
import secrets
import time
from typing import Any

import ray

from goose_ray.engine.step import ModelSpec, StepBatch, StepOutput
from goose_ray.runner.checks import BatchChecker
from goose_ray.runner.model_source import ModelSource
from goose_ray.runner.rank_gang import RankGang
from goose_ray.runner.rank_leash import Leash, LeashWatch, WatchedEngine
from goose_ray.runner.step_channel import ChannelListener, StepDriver

__all__ = ["WorkerGroup"]

_logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 60.0


class WorkerGroup:
    """Implements `goose_ray.engine.step.ModelRunner`.

    A rank that dies, or is silent for `silence_s`, ends the step under way and is the end of the whole gang: its
    processes are killed, and every call raises EngineDeadError naming the rank. An actor (a replica) that is itself
    silent for as long is killed by ranks of its node.

    Takes the gang over, and ends it if anything is raised: ConfigError or ModelLoadError naming the rank that could not
    load the model, and why.
    """

    def __init__(
        self,
        gang: RankGang,
        source: ModelSource,
        *,
        model_id: str,
        num_slots: int,
        max_model_len: int | None,
        attention_backend: str,
        silence_s: float,
    ) -> None:
        self._gang: RankGang | None = gang
        try:
            self._spec: ModelSpec = self._load(
                gang,
                source,
                model_id=model_id,
                num_slots=num_slots,
                max_model_len=max_model_len,
                attention_backend=attention_backend,
            )
            self._checker = BatchChecker(self._spec)
            self._driver, self._watch = self._connect(gang, silence_s)
        except BaseException:
            gang.kill()
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
        if (gang := self.release()) is not None:
            gang.kill()

    def release(self) -> RankGang | None:
        """Has the ranks free their memory and hands them back, for another model; None after the first time."""
        gang, self._gang = self._gang, None
        if gang is not None:
            self._watch.free()
            self._driver.close()
        return gang

    def _load(self, gang: RankGang, source: ModelSource, **options: Any) -> ModelSpec:
        started_s = time.monotonic()
        specs: list[ModelSpec] = gang.call("load", source, **options)
        _logger.info("%d ranks hold %s after %.1f s", len(specs), specs[0].model_id, time.monotonic() - started_s)
        return specs[0]

    def _connect(self, gang: RankGang, silence_s: float) -> tuple[StepDriver, LeashWatch]:
        listener = ChannelListener(ray.util.get_node_ip_address(), token=secrets.token_bytes(32))
        try:
            gang.start("follow", listener.address, _watched_engine(silence_s))
            found = listener.accept(gang.num_ranks, (StepDriver.KIND, Leash.KIND), timeout_s=_CONNECT_TIMEOUT_S)
        finally:
            listener.close()
        driver = StepDriver(found[StepDriver.KIND])

        def lose(rank: int, what: str) -> None:
            _logger.critical("rank %d %s: the gang ends", rank, what)
            driver.fail(f"rank {rank} {what}")
            gang.kill()

        return driver, LeashWatch(found[Leash.KIND], lose, silence_s=silence_s)


def _watched_engine(silence_s: float) -> WatchedEngine | None:
    """Of an actor, whose death others see to. Who stops a command line does it by hand, and may go on with it."""
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return WatchedEngine(silence_s, context.get_node_id(), os.getpid())
