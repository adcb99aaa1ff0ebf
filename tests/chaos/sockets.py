"""Clients below HTTP: bytes as they are, read and written at any speed, and ended in any way."""

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["connection", "exchange", "post", "reset", "statuses_of"]

# A small window, so that what a slow reader leaves unread is the sender's trouble.
_RECEIVE_BYTES = 2048


@asynccontextmanager
async def connection(port: int) -> AsyncGenerator[socket.socket]:
    """Non-blocking; closed at the end, unless it was reset."""
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        yield client


def reset(client: socket.socket) -> None:
    """Ends the connection without a farewell, whatever is still to be sent or read."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def post(path: str, body: Any, *headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


async def exchange(port: int, sent: bytes, *, patience_s: float) -> bytes:
    """What comes back until the server closes, or says nothing for `patience_s`."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    async with connection(port) as client:
        try:
            await loop.sock_sendall(client, sent)
            while chunk := await asyncio.wait_for(loop.sock_recv(client, 1 << 16), patience_s):
                received += chunk
        except (TimeoutError, ConnectionError):
            # closed before it had taken all, or it waits for more
            pass
    return bytes(received)


def statuses_of(received: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)]
