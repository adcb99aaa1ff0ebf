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
from collections.abc import Callable, Mapping
from typing import Any

from goose_ray.engine import grammar_trial_process
from goose_ray.errors import OverloadedError

__all__ = ["TRIAL_CPU_S", "TRIAL_MEMORY_BYTES", "GrammarTrial"]

_logger = logging.getLogger(__name__)

# Of one grammar, beside what the process has.
TRIAL_CPU_S, TRIAL_MEMORY_BYTES = 3, 256 << 20
# Of a processor that others use too. Only a machine that is too busy takes longer.
_TIMEOUT_S = 15.0
# One that has died, of whatever else there is on the machine, is not the fault of who asks.
_ATTEMPTS = 2


class GrammarTrial:
    """A process that is started when it is needed. For one thread at a time; `stop` is for any."""

    def __init__(self, vocabulary: Callable[[], Mapping[str, Any] | None]) -> None:
        """`vocabulary` gives LLTokenizer's `definition`, `n_vocab` and `eos_token`, and `max_lexer_states`; it is asked
        when the process starts.
        """
        self._vocabulary = vocabulary
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def passes(self, source: str) -> bool:
        """Whether the library comes to an end with it, be it with an error. Raises OverloadedError if that cannot be
        found out now.
        """
        try:
            for _ in range(_ATTEMPTS):
                # that it has died
                with contextlib.suppress(BrokenPipeError):
                    answer = self._asked(self._started(), source)
                    if answer in (grammar_trial_process.PASSED, grammar_trial_process.REFUSED):
                        return answer == grammar_trial_process.PASSED
                self._end()
        except OSError as error:
            # It takes far longer than it may, if it is there at all.
            self._end()
            _logger.warning("structured output cannot be looked at: %s", error)
        raise OverloadedError("structured output cannot be looked at now; try again later")

    def start(self) -> None:
        """Before somebody waits for it. Raises OSError."""
        self._started()

    def stop(self) -> None:
        """Idempotent; nothing passes any more."""
        with self._lock:
            self._is_stopped = True
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise OSError("stopped")
            if self._process is not None and self._process.poll() is None:
                return self._process
            if (vocabulary := self._vocabulary()) is None:
                raise OSError("no vocabulary")
            # Ours and the library are found where this process finds them, and nowhere else.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_ARENA_MAX": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", grammar_trial_process.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                # with its children it can be ended, and a terminal's Ctrl-C is not for it
                start_new_session=True,
            )
        self._tell(self._process, {**vocabulary, "cpu_s": TRIAL_CPU_S, "memory_bytes": TRIAL_MEMORY_BYTES})
        return self._process

    def _tell(self, process: subprocess.Popen[bytes], value: object) -> None:
        """Raises BrokenPipeError if it has died, TimeoutError if it does not listen."""
        assert process.stdin is not None
        pipe, left = process.stdin.fileno(), memoryview(json.dumps(value).encode() + b"\n")
        os.set_blocking(pipe, False)
        while left:
            _wait_for(pipe, select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(pipe, left) :]

    def _asked(self, process: subprocess.Popen[bytes], source: str) -> str:
        """Empty: it has died. Raises BrokenPipeError if it had before, TimeoutError if it does not answer."""
        assert process.stdout is not None
        self._tell(process, source)
        _wait_for(process.stdout.fileno(), select.POLLIN)
        return process.stdout.readline().decode().strip()

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        # it may have gone
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            # what was not yet written
            with contextlib.suppress(OSError):
                pipe.close()


def _wait_for(pipe: int, event: int) -> None:
    """Until it can be read or written, or its other end is gone. Raises TimeoutError."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(1000 * _TIMEOUT_S):
        raise TimeoutError(f"no answer within {_TIMEOUT_S:g} s")
