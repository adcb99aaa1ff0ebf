"""How far a run is, on standard error: a bar in a terminal, elsewhere (a log, a pipe) a line now and then.

It does not know what it counts. Standard output stays the results' alone.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm

__all__ = ["LINE_PERIOD_S", "progress"]

LINE_PERIOD_S = 10.0


@contextmanager
def progress(
    name: str,
    *,
    unit: str,
    total: int | None = None,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[], object]]:
    """Gives what is called once for every `unit` that is done. `stream` is standard error unless it is named."""
    stream = stream or sys.stderr
    if stream.isatty():
        with tqdm(total=total, desc=name, unit=unit, file=stream) as bar:
            yield bar.update
    else:
        yield _Lines(name, unit, total, stream, clock).advance


class _Lines:
    def __init__(self, name: str, unit: str, total: int | None, stream: TextIO, clock: Callable[[], float]) -> None:
        self._about = (name, unit, total)
        self._stream = stream
        self._clock = clock
        self._done = 0
        self._last_s = clock()

    def advance(self) -> None:
        self._done += 1
        now = self._clock()
        if now - self._last_s < LINE_PERIOD_S:
            return
        self._last_s = now
        name, unit, total = self._about
        of_all = "" if total is None else f" of {total}"
        self._stream.write(f"{name}: {unit} {self._done}{of_all}\n")
        self._stream.flush()
