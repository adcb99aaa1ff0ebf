"""Requests whose caller has died are ended: nobody will read them, and nobody is left to cancel them.

Knows neither what a caller is nor how one tells that it has died.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

__all__ = ["Callers"]


class Callers:
    """To be used from one event loop.

    While a caller has requests, `is_dead` is asked about it every `period_s`; once it says so, `end` is called with the
    id of each request that the caller still has, again at every turn until it has none.
    """

    def __init__(
        self, is_dead: Callable[[str], Awaitable[bool]], end: Callable[[str], None], *, period_s: float
    ) -> None:
        self._is_dead = is_dead
        self._end = end
        self._period_s = period_s
        # by caller
        self._requests: dict[str, set[str]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    @contextmanager
    def request(self, caller: str, request_id: str) -> Iterator[None]:
        """The request is the caller's for as long as the context lasts."""
        requests = self._requests.setdefault(caller, set())
        requests.add(request_id)
        if caller not in self._watches:
            self._watches[caller] = asyncio.create_task(self._watch(caller))
        try:
            yield
        finally:
            requests.discard(request_id)

    async def stop(self) -> None:
        """Ends all watches, and no request."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, caller: str) -> None:
        requests = self._requests[caller]
        try:
            while requests:
                if await self._is_dead(caller):
                    for request_id in tuple(requests):
                        self._end(request_id)
                await asyncio.sleep(self._period_s)
        finally:
            del self._watches[caller], self._requests[caller]
