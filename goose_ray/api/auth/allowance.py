"""What one tenant may still ask for: requests at once, requests a minute, tokens a minute.

Knows nothing of keys and HTTP. What a request costs in tokens is known when it has been answered, so tokens are paid
afterwards: one request may go over the limit, and the next ones wait for it. Over time the limits hold.
"""

from collections.abc import Callable
from dataclasses import dataclass

from goose_ray.api.auth.api_key import ApiKey
from goose_ray.errors import RateLimitedError

__all__ = ["Allowance"]

_MINUTE_S = 60.0
# Who waited as long as told must get in.
_ROUNDING = 1e-6
# Somebody's requests end at any moment; there is nothing to reckon with.
_RETRY_CONCURRENT_S = 1.0


class Allowance:
    """To be used from one event loop. The limits come with each request, as a key's may change."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_running = 0
        self._requests = _Debt()
        self._tokens = _Debt()

    def enter(self, key: ApiKey) -> None:
        """Pairs with `leave`. Raises RateLimitedError if the request has to wait; it is then not counted."""
        now = self._clock()
        if key.max_concurrent_requests is not None and self._num_running >= key.max_concurrent_requests:
            raise RateLimitedError(
                f"{key.max_concurrent_requests} requests of this API key are under way, as many as it may have",
                _RETRY_CONCURRENT_S,
            )
        if key.tokens_per_minute is not None:
            self._refuse(self._tokens.wait_s(key.tokens_per_minute, now), key.tokens_per_minute, "tokens")
        if key.requests_per_minute is not None:
            self._refuse(self._requests.wait_s(key.requests_per_minute, now), key.requests_per_minute, "requests")
            self._requests.amount += 1
        self._num_running += 1

    def leave(self) -> None:
        if not self._num_running:
            raise RuntimeError("a request leaves that has not entered")
        self._num_running -= 1

    def charge(self, key: ApiKey, num_tokens: int) -> None:
        if key.tokens_per_minute is not None:
            self._tokens.settle(key.tokens_per_minute, self._clock())
            self._tokens.amount += num_tokens

    def _refuse(self, wait_s: float, limit: int, what: str) -> None:
        if wait_s > 0:
            raise RateLimitedError(f"this API key may have {limit} {what} a minute, and has had them", wait_s)


@dataclass(slots=True)
class _Debt:
    """A leaky bucket: what was taken and not yet paid off. It may be as much as a minute pays off."""

    amount: float = 0.0
    at: float = 0.0

    def settle(self, per_minute: int, now: float) -> None:
        self.amount = max(0.0, self.amount - (now - self.at) * per_minute / _MINUTE_S)
        self.at = now

    def wait_s(self, per_minute: int, now: float) -> float:
        """Until there is room for one more; 0 if there is now."""
        self.settle(per_minute, now)
        over = self.amount + 1 - per_minute
        return 0.0 if over < _ROUNDING else over * _MINUTE_S / per_minute
