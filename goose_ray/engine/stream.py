"""One caller's end of a request, and how outputs get there from the engine's thread."""

import asyncio
from collections.abc import Sequence

from goose_ray.engine.grammar import Grammar
from goose_ray.engine.request import GenerationRequest, RequestOutput

__all__ = ["Stream", "send"]


class Stream:
    """To be made in the event loop that reads `items`. It has `ended` with an error or with the last output."""

    __slots__ = ("arrived_s", "ended", "event_loop", "grammar", "items", "request")

    def __init__(self, request: GenerationRequest, arrived_s: float, grammar: Grammar | None) -> None:
        self.request = request
        self.grammar = grammar
        self.arrived_s = arrived_s
        self.event_loop = asyncio.get_running_loop()
        self.items: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()
        self.ended = False


def send(event_loop: asyncio.AbstractEventLoop, items: Sequence[tuple[Stream, RequestOutput | Exception]]) -> bool:
    """Puts the items into streams of one event loop, from another thread. False if that loop is closed.

    All at once, because each call wakes the loop's thread, which then wants the interpreter that the engine needs.
    """

    def put() -> None:
        for stream, item in items:
            stream.items.put_nowait(item)

    try:
        event_loop.call_soon_threadsafe(put)
    except RuntimeError:
        return False
    return True
