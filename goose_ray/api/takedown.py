"""Whether a deployment's last replica has gone for good: a call that still waits for one would wait for ever.

Knows what Serve's controller says of an application, and nothing about calls.
"""

import asyncio
import logging
import time

from ray import serve
from ray.serve.schema import ApplicationStatus

__all__ = ["Takedown"]

logger = logging.getLogger(__name__)

# A controller that has died does not answer until there is another one.
_ANSWER_TIMEOUT_S = 2.0
# Its answer is a description of all that Serve runs.
_ASK_EVERY_S = 5.0


class Takedown:
    """Of one deployment of an application."""

    def __init__(self, application: str, deployment: str) -> None:
        self._application = application
        self._deployment = deployment
        self._asking: asyncio.Task[bool] | None = None
        self._asked_s = 0.0

    async def is_over(self) -> bool:
        """The application is being taken down and the deployment has no replica left. No answer is a no."""
        # All calls that wait share one question, also one that is not answered for long: it occupies a thread.
        now_s = time.monotonic()
        if self._asking is None or (self._asking.done() and now_s >= self._asked_s + _ASK_EVERY_S):
            self._asked_s = now_s
            self._asking = asyncio.create_task(asyncio.to_thread(self._ask))
        await asyncio.wait({self._asking}, timeout=_ANSWER_TIMEOUT_S)
        if not self._asking.done():
            return False
        if (error := self._asking.exception()) is not None:
            logger.debug("Serve does not say how application %s is: %s", self._application, error)
            return False
        return self._asking.result()

    def _ask(self) -> bool:
        application = serve.status().applications.get(self._application)
        if application is None or application.status != ApplicationStatus.DELETING:
            return False
        deployment = application.deployments.get(self._deployment)
        return deployment is None or not any(deployment.replica_states.values())
