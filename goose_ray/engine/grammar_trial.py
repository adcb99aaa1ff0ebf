"""Whether a grammar can be compiled here: tried in another process first, as the library does not count all that it
does, and some specifications of a few lines take it hours, all memory or more stack than there is.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from goose_ray.engine.grammar_trial_process import ENDED, KILLED
from goose_ray.errors import OverloadedError

__all__ = ["TRIAL_CPU_S", "TRIAL_MEMORY_BYTES", "GrammarTrial"]

_logger = logging.getLogger(__name__)

# Of one question, beside what the process has.
TRIAL_CPU_S, TRIAL_MEMORY_BYTES = 3, 256 << 20
# Of a processor that others use too. Only a machine that is too busy takes longer.
_TIMEOUT_S = 15.0
# A process that was killed, by whatever else there is on the machine, is not the fault of who asks.
_ATTEMPTS = 2


class GrammarTrial:
    """A process that is started when it is needed. For one thread at a time; `stop` is for any."""

    def __init__(self, vocabulary: Callable[[], Mapping[str, Any] | None]) -> None:
        """`vocabulary` gives LLTokenizer's `definition`, `n_vocab` and `eos_token`, and `max_lexer_states`; it is asked
        when the process starts.
        """
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        # of the two above
        self._lock = threading.Lock()
        # held by who uses the pipes, who alone may close them
        self._using = threading.Lock()

    def passes(self, source: str) -> bool:
        """Whether the library comes to an end with its grammar `source`, be it with an error. Raises OverloadedError if
        that cannot be found out now.
        """
        with self._using:
            try:
                for _ in range(_ATTEMPTS):
                    # that the process has died
                    with contextlib.suppress(BrokenPipeError):
                        verdict = self._asked(source)
                        if verdict != KILLED:
                            return verdict == ENDED
                    self._end()
                reason = "its processes are killed"
            except OSError as error:
                # It takes far longer than it may, if it is there at all.
                self._end()
                reason = str(error)
        _logger.warning("structured output cannot be looked at: %s", reason)
        raise OverloadedError("structured output cannot be looked at now; try again later")

    def start(self) -> None:
        """Before somebody waits for it. Raises OSError."""
        with self._using:
            try:
                self._started(time.monotonic() + _TIMEOUT_S)
            except OSError:
                self._end()
                raise

    def stop(self) -> None:
        """Idempotent; waits for nothing, and nothing passes any more."""
        with self._lock:
            self._stopped.set()
            _kill(self._process)
        if self._using.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._using.release()

    def _asked(self, source: str) -> str:
        """The verdict. Raises BrokenPipeError if the process has died, TimeoutError if it does not answer."""
        until_s = time.monotonic() + _TIMEOUT_S
        process = self._started(until_s)
        _tell(process, source, until_s)
        return _line(process, until_s).decode().strip()

    def _started(self, until_s: float) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped.is_set():
                raise OSError("stopped")
            if self._process is not None and self._process.poll() is None:
                return self._process
        self._end()
        if (vocabulary := self._vocabulary()) is None:
            raise OSError("no vocabulary")
        # Ours and the library are found where this process finds them, and nowhere else.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_ARENA_MAX": "1"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "goose_ray.engine.grammar_trial_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
            # with its children it can be ended, and a terminal's Ctrl-C is not for it
            start_new_session=True,
        )
        with self._lock:
            self._process = process
            if self._stopped.is_set():
                _kill(process)
        _tell(process, {**vocabulary, "cpu_s": TRIAL_CPU_S, "memory_bytes": TRIAL_MEMORY_BYTES}, until_s)
        return process

    def _end(self) -> None:
        """For who holds `_using`."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    """With what it has started."""
    # it may have gone, and its number be another's
    if process is not None and process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _tell(process: subprocess.Popen[bytes], value: object, until_s: float) -> None:
    """Raises BrokenPipeError if it has died, TimeoutError if it does not listen."""
    assert process.stdin is not None
    pipe, left = process.stdin.fileno(), memoryview(json.dumps(value).encode() + b"\n")
    os.set_blocking(pipe, False)
    while left:
        _wait_for(pipe, select.POLLOUT, until_s)
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(pipe, left) :]


def _line(process: subprocess.Popen[bytes], until_s: float) -> bytes:
    """Raises BrokenPipeError if it has died, TimeoutError if it does not answer."""
    assert process.stdout is not None
    pipe, parts = process.stdout.fileno(), [b""]
    while not parts[-1].endswith(b"\n"):
        _wait_for(pipe, select.POLLIN, until_s)
        parts.append(os.read(pipe, 1 << 16))
        if not parts[-1]:
            raise BrokenPipeError("ended")
    return b"".join(parts)


def _wait_for(pipe: int, event: int, until_s: float) -> None:
    """Until it can be read or written, or its other end is gone. Raises TimeoutError."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, 1000 * (until_s - time.monotonic()))):
        raise TimeoutError(f"no answer within {_TIMEOUT_S:g} s")
