"""The bytes of a request's body, no more of them than a limit. Knows nothing about what they say."""

from starlette.requests import Request

from goose_ray.errors import InvalidRequestError

__all__ = ["read_body"]


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Raises InvalidRequestError: 413 once the body is known to be longer, whether it says its length or not; 415 for a
    compressed one.

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
    async for chunk in request.stream():
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        body += chunk
    return bytes(body)


def _too_large(max_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"The request body is larger than {max_bytes} bytes, the most that this server takes",
        param="body",
        code="request_too_large",
        status=413,
    )
