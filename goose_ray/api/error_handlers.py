"""What FastAPI does with the exceptions of a route: each becomes the reply of `goose_ray.api.errors`."""

import logging

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from goose_ray.api.errors import ErrorReply, to_reply
from goose_ray.errors import EngineDeadError, GooseRayError, InvalidRequestError

__all__ = ["add_error_handlers", "error_response"]

logger = logging.getLogger(__name__)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(GooseRayError, _ours)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _unexpected)


def error_response(reply: ErrorReply) -> JSONResponse:
    return JSONResponse(reply.body(), status_code=reply.status, headers=reply.headers())


async def _client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads it: the client left before it had sent its request. The status is nginx's for that in logs."""
    return Response(status_code=499)


async def _ours(request: Request, error: Exception) -> Response:
    reply = to_reply(error)
    if reply.status >= 500:
        # where an absent replica was noticed tells nobody anything, and every poll would tell it
        trace = None if isinstance(error, EngineDeadError) else error
        logger.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=trace)
    return error_response(reply)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Starlette raises the error again once this is sent, so that it is logged with its traceback."""
    return error_response(to_reply(error))


async def _bad_query(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    details = error.errors()[0]
    param = str(details["loc"][-1])
    return error_response(to_reply(InvalidRequestError(f"Invalid value for '{param}': {details['msg']}", param)))


async def _http(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{error.detail}: {request.method} {request.url.path}"
    reply = to_reply(InvalidRequestError(message, param=None, code=None, status=error.status_code))
    return JSONResponse(reply.body(), status_code=reply.status, headers=error.headers)
