"""The exceptions of the serving system.

GooseRayError
├── ConfigError          a field of the deployment's configuration is wrong            (refuses to start)
├── ModelLoadError       the model cannot be had, is unsafe to load or is unsupported  (refuses to start)
├── InvalidRequestError  a request is wrong: names the field, the value, what is right (HTTP 400/404)
├── OverloadedError      the engine's queue is full                                    (HTTP 429)
│   └── RateLimitedError     an API key has used up what it may have                    (HTTP 429)
└── EngineDeadError      the engine loop has stopped; the replica is unhealthy         (HTTP 503)
"""

__all__ = [
    "ConfigError",
    "EngineDeadError",
    "GooseRayError",
    "InvalidRequestError",
    "ModelLoadError",
    "OverloadedError",
    "RateLimitedError",
]


class GooseRayError(Exception):
    """Root of everything the serving system raises on purpose. Survives pickling: arguments are the fields."""


class ConfigError(GooseRayError, ValueError):
    """A field of the deployment's configuration is wrong."""


class ModelLoadError(GooseRayError):
    """The model cannot be found, read or run."""


class InvalidRequestError(GooseRayError, ValueError):
    """A request cannot be served as it stands.

    `param` is the OpenAI field at fault, `code` OpenAI's machine-readable reason where it has one.
    """

    def __init__(
        self, message: str, param: str | None = None, code: str | None = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message, param, code, status)
        self.message = message
        self.param = param
        self.code = code
        self.status = status

    def __str__(self) -> str:
        return self.message


class OverloadedError(GooseRayError):
    """The engine holds as many requests as `max_waiting_requests` allows; `retry_after_s` is advice to the client."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class RateLimitedError(OverloadedError):
    """The API key has had as much as its limits allow, for now."""

    code = "rate_limit_exceeded"


class EngineDeadError(GooseRayError, RuntimeError):
    """The engine loop has ended; nothing will be answered until the replica is replaced."""
