"""From the engine to the ranks of its gang, and back: a TCP connection to each of them, on one host or several.

A step is one frame to every rank and one frame from rank 0. Whoever fails says so, and whoever dies closes its
connection, so the engine learns of either at once, whichever rank it is. Knows neither Ray nor what a rank computes.
"""

import contextlib
import hmac
import pickle
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from goose_ray.engine.step import StepBatch, StepOutput
from goose_ray.errors import EngineDeadError
from goose_ray.runner.step_codec import StepDecoder, StepEncoder

__all__ = ["ChannelAddress", "ChannelListener", "FrameSocket", "StepDriver", "StepFollower", "connect"]

STEP, ANSWER, ERROR, STOP = b"S", b"A", b"E", b"Q"

_FRAME = struct.Struct("<cI")
_HELLO = struct.Struct("<cI32s")
_HELLO_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Where the engine listens; only who knows the token is listened to."""

    host: str
    port: int
    # 32 bytes
    token: bytes = field(repr=False)


class FrameSocket:
    """A stream socket cut into frames of a kind and a payload."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Raises OSError if the other end is gone."""
        self._connection.sendall(_FRAME.pack(kind, len(payload)) + payload)

    def receive(self) -> tuple[bytes, memoryview]:
        """Waits for a frame. Raises EOFError if the other end is gone."""
        kind, length = _FRAME.unpack(self._exactly(_FRAME.size))
        return kind, self._exactly(length)

    def hang_up(self) -> None:
        """Wakes whoever waits for it, in this process and at the other end; for any thread. Idempotent."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """For when no other thread uses it any more. Idempotent."""
        self.hang_up()
        self._connection.close()

    def _exactly(self, length: int) -> memoryview:
        data = memoryview(bytearray(length))
        have = 0
        while have < length:
            try:
                got = self._connection.recv_into(data[have:])
            except OSError as error:
                raise EOFError(str(error)) from error
            if not got:
                raise EOFError("the connection was closed")
            have += got
        return data


class ChannelListener:
    """Where ranks connect to, on a free port. Closed once all have."""

    def __init__(self, host: str, *, token: bytes) -> None:
        self._token = token
        self._socket = socket.create_server((host, 0))
        self.address = ChannelAddress(host, self._socket.getsockname()[1], token)

    def accept(self, num_ranks: int, kinds: tuple[bytes, ...], *, timeout_s: float) -> dict[bytes, list[FrameSocket]]:
        """A connection of each kind from every rank, in rank order. Raises TimeoutError naming who is missing."""
        missing = {(kind, rank) for kind in kinds for rank in range(num_ranks)}
        found: dict[tuple[bytes, int], FrameSocket] = {}
        self._socket.settimeout(timeout_s)
        while missing:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                ranks = sorted({rank for _, rank in missing})
                raise TimeoutError(f"ranks {ranks} did not connect to {self.address} in {timeout_s:.0f} s") from None
            who = self._recognise(connection)
            if who not in missing:
                connection.close()
                continue
            missing.remove(who)
            found[who] = FrameSocket(connection)
        return {kind: [found[kind, rank] for rank in range(num_ranks)] for kind in kinds}

    def close(self) -> None:
        self._socket.close()

    def _recognise(self, connection: socket.socket) -> tuple[bytes, int] | None:
        connection.settimeout(_HELLO_TIMEOUT_S)
        try:
            kind, rank, token = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
        except (OSError, struct.error):
            return None
        connection.settimeout(None)
        return (kind, rank) if hmac.compare_digest(token, self._token) else None


def connect(address: ChannelAddress, rank: int, kind: bytes, *, timeout_s: float = 30.0) -> FrameSocket:
    """A rank's end of a connection. Raises OSError if nobody listens there."""
    connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
    connection.sendall(_HELLO.pack(kind, rank, address.token))
    connection.settimeout(None)
    return FrameSocket(connection)


class StepDriver:
    """The engine's end. One thread steps; any may `fail` or `close`."""

    KIND = b"S"

    def __init__(self, ranks: list[FrameSocket]) -> None:
        self._ranks = ranks
        self._encoder = StepEncoder()
        self._poll = select.poll()
        self._rank_of = {connection.fileno(): rank for rank, connection in enumerate(ranks)}
        for descriptor in self._rank_of:
            self._poll.register(descriptor, select.POLLIN)
        self._lock = threading.Lock()
        self._death: str | None = None

    def step(self, batch: StepBatch) -> StepOutput:
        """Raises EngineDeadError naming the rank that failed or died, from then on always."""
        self.check_alive()
        frame = self._encoder.encode(batch)
        for rank, connection in enumerate(self._ranks):
            try:
                connection.send(STEP, frame)
            except OSError as error:
                raise self._dead(f"rank {rank} is gone: {error}") from error
        while True:
            for descriptor, _ in self._poll.poll():
                return self._receive(self._rank_of[descriptor])

    def check_alive(self) -> None:
        """Raises EngineDeadError once a rank is known to be dead."""
        if self._death is not None:
            raise EngineDeadError(self._death)

    def fail(self, reason: str) -> None:
        """The gang is dead, for a reason that was seen elsewhere: ends a step that is under way. For any thread."""
        with self._lock:
            self._death = self._death or reason
        for connection in self._ranks:
            connection.hang_up()

    def close(self) -> None:
        """Tells the ranks to leave the loop, when no step is under way. Idempotent."""
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.send(STOP)
        self.fail("the ranks were told to stop")
        for connection in self._ranks:
            connection.close()

    def _receive(self, rank: int) -> StepOutput:
        try:
            kind, payload = self._ranks[rank].receive()
        except EOFError as error:
            raise self._dead(f"rank {rank} has died") from error
        if kind == ERROR:
            raise self._dead(f"rank {rank} failed: {bytes(payload).decode()}")
        if kind != ANSWER or rank != 0:
            raise self._dead(f"rank {rank} sent a frame of kind {kind!r}, which it must not")
        output: StepOutput = pickle.loads(payload)
        return output

    def _dead(self, reason: str) -> EngineDeadError:
        self.fail(reason)
        return EngineDeadError(self._death or reason)


class StepFollower:
    """A rank's end: runs what it is told until it is told to stop."""

    def __init__(self, connection: FrameSocket) -> None:
        self._connection = connection
        self._decoder = StepDecoder()

    @classmethod
    def connect(cls, address: ChannelAddress, rank: int) -> Self:
        return cls(connect(address, rank, StepDriver.KIND))

    def follow(self, execute: Callable[[StepBatch], StepOutput | None]) -> None:
        """Returns when told to stop, or when the engine is gone. `execute` gives the output on rank 0, None elsewhere;
        what it raises is told the engine, and raised.
        """
        try:
            while True:
                kind, payload = self._connection.receive()
                if kind != STEP:
                    return
                try:
                    output = execute(self._decoder.decode(payload))
                except BaseException as error:
                    self._connection.send(ERROR, f"{type(error).__name__}: {error}".encode())
                    raise
                if output is not None:
                    self._connection.send(ANSWER, pickle.dumps(output, protocol=5))
        except (EOFError, OSError):
            return
        finally:
            self._connection.close()
