"""The Serve deployment behind the ingress: one engine, its tokenizer, and its reports to the cluster.

Knows Serve's life of a replica (start, health, shutdown) and neither HTTP nor how a step is made.
"""

import asyncio
import itertools
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from dataclasses import asdict
from typing import Any

import ray
from ray import serve
from ray.exceptions import ActorDiedError, RayError

from goose.policies.autoregressive import AutoregressivePolicy
from goose_ray.api.backend import ReplicaSteps
from goose_ray.api.callers import Callers
from goose_ray.api.calls import DecodeCall, Delta, EncodeCall, Encoded, Failure, GenerateCall
from goose_ray.api.context import nodes_of_auto
from goose_ray.api.engine_calls import EngineCalls, as_data
from goose_ray.api.serve_logging import log_through_serve
from goose_ray.assembly import build_engine
from goose_ray.config import GooseConfig
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import EngineDeadError, GooseRayError
from goose_ray.scaling.load_meter import LoadMeter
from goose_ray.telemetry.acceptance_aggregator import AGGREGATOR_NAME
from goose_ray.telemetry.aggregator_link import AggregatorLink
from goose_ray.telemetry.dashboard.live import ReplicaLive
from goose_ray.telemetry.learning_exchange import LearningExchange, fetch_start
from goose_ray.telemetry.replica_telemetry import ReplicaTelemetry
from goose_ray.telemetry.report import Incarnation, ReplicaReport
from goose_ray.telemetry.reporter import Reporter
from goose_ray.telemetry.tracing import Tracing

__all__ = ["GooseServer"]

logger = logging.getLogger(__name__)

_REPORT_TIMEOUT_S = 5.0
_WATCH_PERIOD_S = 0.5
_CALLER_PERIOD_S = 1.0
# where Serve keeps its actors
_SERVE_NAMESPACE = "serve"


class GooseServer:
    """Ready, for Serve, once `__init__` has returned: the model is loaded and has answered a first request."""

    # `__init__` has ended well, so there is something to take down
    _is_up = False

    async def __init__(self, config: GooseConfig) -> None:  # type: ignore[misc]
        log_through_serve()
        began_s = time.monotonic()
        config = config.on_node(_cpus_of_this_node())
        self._config = config
        link = AggregatorLink(self.aggregator, timeout_s=_REPORT_TIMEOUT_S)
        start = await fetch_start(link, config.model, timeout_s=_REPORT_TIMEOUT_S) if config.tuning else None
        self._engine = await asyncio.to_thread(build_engine, config, start)
        self._incarnation = Incarnation(replica_id=serve.get_replica_context().replica_id.unique_id)
        self._tracing = Tracing.to(
            config.tracing_endpoint, instance=self._incarnation.replica_id, sample=config.tracing_sample
        )
        self._calls = EngineCalls(
            self._engine,
            tool_parser=config.tool_parser,
            reasoning_parser=config.reasoning_parser,
            nodes_of_auto=nodes_of_auto(config.engine),
            tracing=self._tracing,
        )
        self._engine.start()
        self._started_s = time.monotonic()
        self._start_text_tokens = 0 if start is None else len(start.texts.token_ids)
        self._report_numbers = itertools.count(1)
        self._load = LoadMeter(config.engine)
        self._telemetry = ReplicaTelemetry(self._engine, self._incarnation, model=config.model_name)
        self._callers = Callers(_CallerLiveness().is_dead, self._end_orphan, period_s=_CALLER_PERIOD_S)
        self._reporter = Reporter(
            self._make_report, link.observe, period_s=config.report_period_s, on_tuning=self._engine.tune
        )
        self._sharing = LearningExchange(
            self._engine.learned,
            link.publish,
            incarnation=self._incarnation.id,
            model=config.model,
            max_tokens=config.shared_text_tokens if config.share_texts else 0,
            period_s=config.share_period_s,
        )
        try:
            await self._warm_up()
        except BaseException:
            await asyncio.to_thread(self._engine.stop)
            raise
        self._reporter.start()
        if config.tuning:
            self._sharing.start()
        self._watch = asyncio.create_task(self._leave_when_dead())
        self._is_up = True
        logger.info("ready after %.0f s", time.monotonic() - began_s)

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta | Failure]:
        """One item a step. Closing it cancels the request before the next step, as does the death of the caller. Our
        errors come as a `Failure`.

        Of a dead engine nothing comes: the call ends with the process. Answered sooner, the request would be tried
        again, and for the last time, while Serve may still choose this replica.
        """
        watched = nullcontext() if call.caller is None else self._callers.request(call.caller, call.request_id)
        with watched:
            async with aclosing(self._generate(call)) as items:
                async for item in items:
                    yield item

    async def _generate(self, call: GenerateCall) -> AsyncGenerator[Delta | Failure]:
        try:
            async with aclosing(self._calls.answer(call)) as deltas:
                async for delta in deltas:
                    yield delta
        except EngineDeadError as error:
            # returns only if Serve takes the replica down in peace
            await asyncio.wait([self._watch])
            yield Failure(error)
        except GooseRayError as error:
            yield Failure(error)

    async def encode(self, call: EncodeCall) -> Encoded | Failure:
        return await as_data(self._calls.encode(call))

    async def decode(self, call: DecodeCall) -> str | Failure:
        return await as_data(self._calls.decode(call))

    async def report(self) -> ReplicaReport:
        return self._make_report()

    async def steps(self, count: int) -> ReplicaSteps:
        return ReplicaSteps(self._incarnation.replica_id, self._engine.step_trace(count))

    async def live(self, since: float) -> ReplicaLive:
        return self._telemetry.live(since)

    async def aggregator(self) -> Any:
        """A handle to the aggregator actor of this moment, None while there is none."""
        try:
            return await asyncio.to_thread(serve.get_deployment_actor, AGGREGATOR_NAME)
        except ValueError:
            return None

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For Serve's autoscaler: the fields of `goose_ray.scaling.policy.Load`."""
        return asdict(self._load.measure(self._engine.stats(), time.monotonic()))

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises."""
        self._engine.check_health()

    async def __del__(self) -> None:
        """Serve awaits it when it takes the replica down in peace, also one that never came up."""
        if not self._is_up:
            return
        self._watch.cancel()
        self._calls.stop()
        await self._callers.stop()
        await self._sharing.stop()
        await self._reporter.stop()
        await asyncio.to_thread(self._engine.stop)
        await asyncio.to_thread(self._tracing.shutdown)

    def _end_orphan(self, request_id: str) -> None:
        logger.warning("request %s ends: its caller has died", request_id)
        self._engine.abort(request_id, "the caller has died")

    async def _leave_when_dead(self) -> None:
        """Ends the process once its engine is dead: nothing revives it.

        Serve replaces a replica that fails its health checks after three of them and sends it requests till then, all
        the more as it is quick to fail them. One whose process has ended is replaced at once, and the requests it had
        go on elsewhere.
        """
        while self._is_healthy():
            await asyncio.sleep(_WATCH_PERIOD_S)
        logger.critical("the engine is dead: this replica leaves")
        try:
            await self._reporter.report()
        except Exception:
            logger.exception("the last report failed")
        os._exit(1)

    async def _warm_up(self) -> None:
        """A process' first forwards are slow: they are not a client's. Plain decoding leaves acceptance at zero."""
        call = GenerateCall(
            request_id=f"warm-up-{uuid.uuid4().hex}",
            prompt="Hello",
            sampling=SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True),
            clip_max_tokens=True,
            policy=AutoregressivePolicy.name,
        )
        async for _ in self._engine.generate(await self._calls.to_request(call)):
            pass

    def _make_report(self) -> ReplicaReport:
        return ReplicaReport(
            incarnation=self._incarnation,
            sequence=next(self._report_numbers),
            model=self._config.model,
            max_model_len=self._engine.max_model_len,
            healthy=self._is_healthy(),
            acceptance=self._engine.acceptance(),
            stats=self._telemetry.sample(),
            workload=self._config.workload,
            uptime_s=time.monotonic() - self._started_s,
            tuning_counts=self._engine.tuning_counts(),
            tuning=self._engine.tuning,
            start_text_tokens=self._start_text_tokens,
        )

    def _is_healthy(self) -> bool:
        try:
            self._engine.check_health()
        except EngineDeadError:
            return False
        return True


class _CallerLiveness:
    """Tells which actors have died. One that answers late, or cannot be looked up, has not."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}

    async def is_dead(self, name: str) -> bool:
        try:
            if name not in self._handles:
                self._handles[name] = await asyncio.to_thread(ray.get_actor, name, _SERVE_NAMESPACE)
            await self._handles[name].__ray_ready__.remote()
        except ActorDiedError:
            return True
        except (RayError, ValueError) as error:
            logger.debug("caller %s cannot be asked: %s", name, error)
        return False


def _cpus_of_this_node() -> int:
    """As Ray counts them, which knows the limits of a container."""
    node_id = ray.get_runtime_context().get_node_id()
    return next(int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["NodeID"] == node_id)
