"""A replica's side of shared learning: gives out what it has learned now and then, and starts from what others have.

Without the aggregator, or without anything to share, a replica goes on as it is. Knows neither Serve nor the engine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import ray
from ray.exceptions import RayError

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.known_texts import KnownTexts
from goose_ray.errors import EngineDeadError
from goose_ray.telemetry.aggregator_link import AggregatorAwayError, AggregatorLink
from goose_ray.telemetry.starting_point import StartingPoint, united
from goose_ray.telemetry.warm_starts import LearnedWeights, Offer

__all__ = ["LearningExchange", "fetch_start"]

logger = logging.getLogger(__name__)


async def fetch_start(link: AggregatorLink, model: str, *, timeout_s: float) -> StartingPoint | None:
    """None where nobody has anything. A text's owner that has died since is passed over."""
    try:
        start = await link.warm_start(model)
    except AggregatorAwayError as error:
        logger.info("%s: this replica starts from its calibration alone", error)
        return None
    except Exception:
        # whatever it was, a replica that starts from less still starts
        logger.exception("the aggregator cannot be asked for a start")
        return None
    found: list[KnownTexts] = []
    for reference in start.texts:
        try:
            async with asyncio.timeout(timeout_s):
                found.append(await reference)
        except (RayError, TimeoutError) as error:
            logger.info("shared texts are gone with the replica that had them: %s", type(error).__name__)
    return StartingPoint(start.weights, united(found)) if found or start.weights is not None else None


class LearningExchange:
    """One task on the loop that `start` is called in. `max_tokens` 0 shares weights alone."""

    def __init__(
        self,
        learned: Callable[[int], Awaitable[CalibrationFile | None]],
        publish: Callable[[Offer], Awaitable[None]],
        *,
        incarnation: str,
        model: str,
        max_tokens: int,
        period_s: float,
        put: Callable[[KnownTexts], object] = ray.put,
    ) -> None:
        self._learned = learned
        self._publish = publish
        self._incarnation = incarnation
        self._model = model
        self._max_tokens = max_tokens
        self._period_s = period_s
        self._put = put
        self._task: asyncio.Task[None] | None = None
        self._shared = 0.0

    def start(self) -> None:
        """Raises RuntimeError if it runs already."""
        if self._task is not None:
            raise RuntimeError("the exchange was started twice")
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def share(self) -> bool:
        """Publishes what was learned, if anything was since the last time."""
        found = await self._learned(self._max_tokens)
        if found is None:
            return False
        amount = float(found.weights.squares.sum())
        if amount <= self._shared:
            return False
        texts = self._put(found.texts) if len(found.texts) else None
        await self._publish(
            Offer(
                self._incarnation,
                self._model,
                LearnedWeights(found.weights.values, found.weights.squares),
                texts,
            )
        )
        self._shared = amount
        return True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                await self.share()
            except AggregatorAwayError as error:
                logger.debug("nothing is shared: %s", error)
            except EngineDeadError:
                return
            except Exception:
                # whatever it was, the replica serves on
                logger.exception("what was learned could not be shared")
