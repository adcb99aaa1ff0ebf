"""Whether a grammar can be compiled here: tried in another process first, as the library does not count all that it
does, and some specifications of a few lines take it hours, all memory or more stack than there is.
"""

import contextlib
import json
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

# Of one grammar, beside what the process has.
TRIAL_CPU_S, TRIAL_MEMORY_BYTES = 3, 256 << 20
# Of a processor that others use too.
_TIMEOUT_S = 20.0


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
            process = self._started()
            self._tell(process, source)
            answer = self._answer(process)
        except OSError as error:
            self._end()
            raise OverloadedError(f"structured output cannot be looked at now ({error}); try again later") from error
        if answer not in (grammar_trial_process.PASSED, grammar_trial_process.REFUSED):
            # It has died or takes far longer than it may: another one comes for the next grammar.
            self._end()
            if answer is not None:
                raise OverloadedError("structured output cannot be looked at now; try again later")
        return answer == grammar_trial_process.PASSED

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
        assert process.stdin is not None
        process.stdin.write(json.dumps(value).encode() + b"\n")
        process.stdin.flush()

    def _answer(self, process: subprocess.Popen[bytes]) -> str | None:
        """None: not in time."""
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        if not poll.poll(1000 * _TIMEOUT_S):
            return None
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
