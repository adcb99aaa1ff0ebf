"""The bytes of a request's body, no more of them than a limit. Knows nothing about what they say."""

import asyncio

from starlette.requests import Request

from goose_ray.errors import InvalidRequestError

__all__ = ["read_body"]


async def read_body(request: Request, max_bytes: int, *, timeout_s: float) -> bytes:
    """Raises InvalidRequestError: 413 once the body is known to be longer, whether it says its length or not; 415 for a
    compressed one; 408 if it has not come after `timeout_s`.

    Raises starlette's ClientDisconnect if the client leaves before the end.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise InvalidRequestError(
            f"Content-Encoding must be absent, not {encoding}: bodies are taken as they are",
            param="content-encoding",
            code="unsupported_media_type",
            status=415,
        )
    stated = request.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                if len(body) + len(chunk) > max_bytes:
                    raise _too_large(max_bytes)
                body += chunk
    except TimeoutError:
        raise InvalidRequestError(
            f"The request body has not come within {timeout_s:g} seconds",
            param="body",
            code="request_timeout",
            status=408,
        ) from None
    return bytes(body)


def _too_large(max_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"The request body is larger than {max_bytes} bytes, the most that this server takes",
        param="body",
        code="request_too_large",
        status=413,
    )
