"""Clocks around functions of the product, for as long as a benchmark runs: which part of a step takes how long.

A stage inside another is counted for itself alone. Knows nothing of what the functions do.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["Place", "stage_clocks"]

# A module or class, and the name of a function in it.
Place = tuple[Any, str]


@contextmanager
def stage_clocks(
    stages: Mapping[str, Sequence[Place]], clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, float]]:
    """Seconds by `clock` that each stage has taken so far, without those of the stages inside it.

    The functions are replaced while the context lasts; a stage on another thread than its caller's counts there too.
    """
    spent = dict.fromkeys(stages, 0.0)
    inside = threading.local()

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            outer: list[float] | None = getattr(inside, "seconds", None)
            inside.seconds = own = [0.0]
            started_s = clock()
            try:
                return function(*args, **named)
            finally:
                taken = clock() - started_s
                spent[name] += taken - own[0]
                inside.seconds = outer
                if outer is not None:
                    outer[0] += taken

        return run

    plain = {place: getattr(*place) for places in stages.values() for place in places}
    try:
        for name, places in stages.items():
            for place in places:
                setattr(*place, clocked(name, plain[place]))
        yield spent
    finally:
        for place, function in plain.items():
            setattr(*place, function)
