"""Errors as HTTP: status, headers and the OpenAI body for whatever a request can fail with.

Knows the exception tree of `goose_ray.errors` and nothing about where an error came from.
"""

import math
from dataclasses import dataclass
from typing import Any

from goose_ray.errors import EngineDeadError, InvalidRequestError, OverloadedError

__all__ = ["ErrorReply", "to_reply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """One error as the client sees it. `param` names the field at fault, `code` is for machines."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, rounded up: never an invitation to come back too early."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(0, math.ceil(self.retry_after_s)))}


def to_reply(error: BaseException) -> ErrorReply:
    """The reply to `error`. Anything that is not ours becomes a 500 that gives nothing away of the inside."""
    if isinstance(error, InvalidRequestError):
        return ErrorReply(
            status=error.status,
            message=error.message,
            type="invalid_request_error",
            param=error.param,
            code=error.code,
        )
    if isinstance(error, OverloadedError):
        return ErrorReply(
            status=429,
            message=error.message,
            type="rate_limit_error",
            code=error.code,
            retry_after_s=error.retry_after_s,
        )
    if isinstance(error, EngineDeadError):
        return ErrorReply(status=503, message=str(error), type="server_error", code="unavailable", retry_after_s=1.0)
    return ErrorReply(
        status=500,
        message="The server failed to answer this request; its log says why.",
        type="server_error",
        code="internal_error",
    )
