"""The application with a bad way to the aggregator: of a replica's reports 30 % are lost and 30 % come twice, the
second time late. Imported by the processes of the cluster, not by the tests.
"""

from random import Random
from typing import Any

from ray.serve import Application

import goose_ray.app
import goose_ray.replica
from goose.tuning import TreeTuning
from goose_ray.config import GooseConfig
from goose_ray.telemetry.aggregator_link import AggregatorAwayError
from goose_ray.telemetry.report import ReplicaReport

__all__ = ["build_app"]

_LOST, _DOUBLED = 0.3, 0.3


class GooseServer(goose_ray.replica.GooseServer):
    """Serve takes the deployment's name from the class."""

    async def __init__(self, config: GooseConfig) -> None:  # type: ignore[misc]
        await super().__init__(config)
        send, random, late = self._reporter._send, Random(self._incarnation.id), list[ReplicaReport]()

        async def send_badly(report: ReplicaReport) -> TreeTuning | None:
            if random.random() < _LOST:
                raise AggregatorAwayError("lost on the way")
            tuning = await send(report)
            if random.random() < _DOUBLED:
                late.append(report)
                await send(late[random.randrange(len(late))])
            return tuning

        self._reporter._send = send_badly


def build_app(args: dict[str, Any]) -> Application:
    goose_ray.app.GooseServer = GooseServer  # type: ignore[attr-defined]
    return goose_ray.app.build_app(args)
