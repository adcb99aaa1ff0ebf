"""ASGI middleware: a server that ends a request by an exception out of `receive` has said that the client left.

Ray Serve does so if it cancels the request before it has passed on the client's `http.disconnect`. Knows nothing of the
application behind it.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Disconnects"]


class Disconnects:
    """`error` is the server's exception; the application gets the message in its place."""

    def __init__(self, app: ASGIApp, error: type[Exception]) -> None:
        self._app = app
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def received() -> Message:
            try:
                return await receive()
            except self._error:
                return {"type": "http.disconnect"}

        await self._app(scope, received, send)
