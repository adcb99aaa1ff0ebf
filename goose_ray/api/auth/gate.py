"""The gate before all routes: who has no key gets no further than `/health`.

An ASGI layer of its own, so that no route can be left out. Knows no routes but that one, and no request's meaning.
"""

import base64
import binascii

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from goose_ray.api.auth.allowance import Allowance
from goose_ray.api.auth.api_key import ApiKey
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.api.auth.tenant import TENANT, Tenant
from goose_ray.api.error_handlers import error_response
from goose_ray.api.errors import ErrorReply, to_reply
from goose_ray.errors import RateLimitedError

__all__ = ["Gate"]

_OPEN = "/health"
# What a browser is pointed at: it asks for a password and sends it with all that the page then fetches.
_PAGE = "/dashboard"
_REALM = 'realm="goose"'
# Browsers send a password unasked, also for a page of somebody else's: so it opens nothing that does something.
_PASSWORD_METHODS = frozenset({"GET", "HEAD"})


class Gate:
    """Requests that do something, which are POSTs, count against the limits of their key."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys
        # by the name of the tenant
        self._allowances: dict[str, Allowance] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        if scope["type"] == "lifespan" or (is_http and _path(scope) == _OPEN):
            await self._app(scope, receive, send)
            return
        presented = _presented(scope)
        key = None if presented is None else self._keys.find(presented)
        if key is None:
            refusal = _unauthorized(scope, presented)
            await (refusal(scope, receive, send) if is_http else _refuse_socket(refusal, scope, receive, send))
            return
        tenant = self._tenant(key)
        scope[TENANT] = tenant
        if not is_http or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            tenant.allowance.enter(key)
        except RateLimitedError as error:
            await error_response(to_reply(error))(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            tenant.allowance.leave()

    def _tenant(self, key: ApiKey) -> Tenant:
        return Tenant(key, self._allowances.setdefault(key.name, Allowance(self._keys.clock)))


async def _refuse_socket(refusal: JSONResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """No route of ours is a WebSocket; the gate holds for one all the same."""
    socket = WebSocket(scope, receive, send)
    if "websocket.http.response" in scope.get("extensions", {}):
        await socket.send_denial_response(refusal)
    else:
        # the server then answers 403
        await socket.close()


def _path(scope: Scope) -> str:
    """Below the place where the application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _presented(scope: Scope) -> str | None:
    """The key of the one `Authorization` header: `Bearer KEY`, or the password of `Basic`."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, given = values[0].strip().partition(" ")
    given = given.strip()
    if scheme.lower() == "bearer":
        return given or None
    if scheme.lower() == "basic" and scope.get("method") in _PASSWORD_METHODS:
        return _password(given)
    return None


def _password(given: str) -> str | None:
    try:
        user_and_password = base64.b64decode(given, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return user_and_password.partition(":")[2] or None


def _unauthorized(scope: Scope, presented: str | None) -> JSONResponse:
    message = (
        "This server wants an API key, in the header `Authorization: Bearer KEY`"
        if presented is None
        else "The API key is not one of this server's"
    )
    reply = ErrorReply(status=401, message=message, type="invalid_request_error", code="invalid_api_key")
    response = error_response(reply)
    response.headers.append("WWW-Authenticate", f"Bearer {_REALM}")
    if _path(scope) == _PAGE:
        response.headers.append("WWW-Authenticate", f'Basic {_REALM}, charset="UTF-8"')
    return response
