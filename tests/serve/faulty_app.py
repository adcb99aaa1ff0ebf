"""The application with a fault built in: a prompt of `POISON` kills the engine of the replica that computes it.

Imported by the processes of the cluster, not by the tests.
"""

from typing import Any

from ray.serve import Application

import goose_ray.app
import goose_ray.replica
from goose_ray.config import GooseConfig
from goose_ray.engine.step import StepBatch, StepOutput

__all__ = ["POISON", "build_app"]

POISON = 13_579


class GooseServer(goose_ray.replica.GooseServer):
    """Serve takes the deployment's name from the class."""

    async def __init__(self, config: GooseConfig) -> None:  # type: ignore[misc]
        await super().__init__(config)
        runner = self._engine._engine._runner
        execute = runner.execute

        def execute_or_die(batch: StepBatch) -> StepOutput:
            if POISON in batch.token_ids:
                raise RuntimeError("poisoned")
            return execute(batch)

        runner.execute = execute_or_die  # type: ignore[method-assign]


def build_app(args: dict[str, Any]) -> Application:
    goose_ray.app.GooseServer = GooseServer  # type: ignore[attr-defined]
    return goose_ray.app.build_app(args)
