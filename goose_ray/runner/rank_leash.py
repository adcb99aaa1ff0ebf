"""Who is still alive: a second connection between the engine and each rank, which nothing but death or a stop ends.

Both ends say every second that they live, from threads of their own, so silence means that the process is stopped or
its machine is gone. A rank whose engine has gone ends itself: none outlives its replica, however that ended, and none
spins for ever in a collective that the others have left.
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from goose_ray.runner.step_channel import ChannelAddress, FrameSocket, connect

__all__ = ["Leash", "LeashWatch", "WatchedEngine"]

_logger = logging.getLogger(__name__)

_BEAT, _FREE = b"B", b"F"
_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchedEngine:
    """An engine whose silence counts as its death: somebody starts another one then."""

    silence_s: float
    # of Ray's, and the process on it
    node_id: str
    pid: int


class Leash:
    """A rank's end. Ends the process when the engine's end is gone, unless it was freed first.

    So does the silence of a `watched` engine, which it ends first if it is on the same node: stopped but not dead, it
    would keep the requests that it has.
    """

    KIND = b"L"

    def __init__(self, connection: FrameSocket, watched: WatchedEngine | None = None, *, node_id: str = "") -> None:
        self._connection = connection
        self._watched = watched
        self._node_id = node_id
        self._thread = threading.Thread(target=self._run, name="goose-leash", daemon=True)
        self._thread.start()

    @classmethod
    def connect(
        cls, address: ChannelAddress, rank: int, watched: WatchedEngine | None = None, *, node_id: str = ""
    ) -> "Leash":
        return cls(connect(address, rank, cls.KIND), watched, node_id=node_id)

    def join(self) -> None:
        """Waits until the engine has freed this rank."""
        self._thread.join()

    def _run(self) -> None:
        # Counted by waits, so that a pause of this process or its machine is not taken for the engine's.
        silent_s = 0.0
        try:
            while True:
                readable, _, _ = select.select([self._connection], [], [], _PERIOD_S)
                if readable:
                    if self._connection.receive()[0] == _FREE:
                        self._connection.close()
                        return
                    silent_s = 0.0
                else:
                    silent_s += _PERIOD_S
                if self._watched is not None and silent_s > self._watched.silence_s:
                    self._end_engine(self._watched)
                    break
                self._connection.send(_BEAT)
        except (EOFError, OSError) as error:
            _logger.critical("the engine is gone: this rank ends (%s)", error)
        # Not `sys.exit`: the main thread may be inside a collective that never returns.
        os._exit(1)

    def _end_engine(self, engine: WatchedEngine) -> None:
        _logger.critical("no sign of life of the engine for %.0f s: this rank ends", engine.silence_s)
        if engine.node_id == self._node_id:
            # Its end of the connection is open, so the number is still that of its process.
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine.pid, signal.SIGKILL)


class LeashWatch:
    """The engine's end. Calls `on_loss` once, with the rank and what became of it, from a thread of its own."""

    def __init__(self, ranks: list[FrameSocket], on_loss: Callable[[int, str], None], *, silence_s: float) -> None:
        self._ranks = ranks
        self._on_loss = on_loss
        self._silence_s = silence_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="goose-leash-watch", daemon=True)
        self._thread.start()

    def free(self) -> None:
        """The ranks may outlive this, and nobody watches them any more. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        for connection in self._ranks:
            try:
                connection.send(_FREE)
            except OSError as error:
                _logger.debug("a rank was gone before it was freed: %s", error)
        self._thread.join()
        for connection in self._ranks:
            connection.close()

    def _run(self) -> None:
        heard_s = dict.fromkeys(range(len(self._ranks)), time.monotonic())
        rank_of = {connection.fileno(): rank for rank, connection in enumerate(self._ranks)}
        poll = select.poll()
        for descriptor in rank_of:
            poll.register(descriptor, select.POLLIN)
        told_s = 0.0
        while not self._stopping.is_set():
            events = poll.poll(_PERIOD_S * 500)
            now_s = time.monotonic()
            if now_s - told_s >= _PERIOD_S:
                told_s = now_s
                self._tell_all()
            for descriptor, _ in events:
                rank = rank_of[descriptor]
                try:
                    self._ranks[rank].receive()
                except EOFError:
                    self._lose(rank, "has died")
                    return
                heard_s[rank] = now_s
            for rank, last_s in heard_s.items():
                if now_s - last_s > self._silence_s:
                    self._lose(rank, f"has not given a sign of life for {now_s - last_s:.0f} s")
                    return

    def _tell_all(self) -> None:
        for connection in self._ranks:
            # Of one that is gone the end of its connection tells.
            with contextlib.suppress(OSError):
                connection.send(_BEAT)

    def _lose(self, rank: int, what: str) -> None:
        if not self._stopping.is_set():
            self._on_loss(rank, what)
