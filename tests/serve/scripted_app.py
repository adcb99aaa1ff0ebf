"""The real ingress before replicas that count: " 0 1 2 ..." to whoever asks, and on from where another one was lost.

A short answer comes at once. A long one grows by a number every few milliseconds until the file is there that
`GOOSE_TEST_END` names. Imported by the processes of the cluster, not by the tests; no model and no torch are.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from goose.calibration import AcceptanceTable
from goose_ray.api.backend import ReplicaSteps
from goose_ray.api.calls import Delta, GenerateCall, PromptInfo
from goose_ray.api.ingress import INGRESS_OPTIONS, OpenAIIngress
from goose_ray.config import GooseConfig
from goose_ray.engine.request import SpeculationStats
from goose_ray.engine.stats import EngineStats
from goose_ray.telemetry.report import Incarnation, ReplicaReport

__all__ = ["SHORT_TOKENS", "build_app"]

SHORT_TOKENS = 8
_PACE_S = 0.02


class GooseServer:
    def __init__(self) -> None:
        self._incarnation = Incarnation(replica_id=serve.get_replica_context().replica_id.unique_id)
        self._num_reports = 0

    async def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        is_long = call.sampling.max_tokens > SHORT_TOKENS
        end = Path(os.environ["GOOSE_TEST_END"])
        # the tokens of the first delta
        numbers = range(len(call.committed_ids) + 1)
        prompt: PromptInfo | None = PromptInfo(1, model_id="scripted")
        while True:
            is_last = end.exists() if is_long else numbers.stop == call.sampling.max_tokens
            yield Delta(
                text="".join(f" {number}" for number in numbers),
                token_ids=tuple(numbers),
                prompt=prompt,
                finish_reason="length" if is_last else None,
                stats=SpeculationStats() if is_last else None,
            )
            if is_last:
                return
            numbers, prompt = range(numbers.stop, numbers.stop + 1), None
            await asyncio.sleep(_PACE_S if is_long else 0)

    async def report(self) -> ReplicaReport:
        self._num_reports += 1
        return ReplicaReport(
            incarnation=self._incarnation,
            sequence=self._num_reports,
            model="scripted",
            max_model_len=8192,
            healthy=True,
            acceptance=AcceptanceTable(),
            stats=EngineStats(),
        )

    async def steps(self, count: int) -> ReplicaSteps:
        return ReplicaSteps(self._incarnation.replica_id, ())


def build_app(args: dict[str, Any]) -> Application:
    router = RequestRouterConfig(
        request_router_class="goose_ray.routing.request_router.PrefixRequestRouter",
        request_router_kwargs={"blocks_per_replica": 64},
    )
    server = serve.deployment(GooseServer).options(request_router_config=router)
    ingress = serve.deployment(serve.ingress()(OpenAIIngress)).options(
        ray_actor_options={"num_cpus": 0}, **INGRESS_OPTIONS
    )
    return ingress.bind(server.bind(), GooseConfig.from_args(args))
