"""What other threads want done with the engine: calls that its own thread answers between two steps."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from goose_ray.errors import EngineDeadError

__all__ = ["CallsBetweenSteps"]

T = TypeVar("T")


class CallsBetweenSteps:
    """A queue; whoever posts and whoever ends it hold the same lock, the caller's."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def post(self, do: Callable[[], T]) -> "Future[T]":
        done: Future[T] = Future()
        self._calls.append((done, do))
        return done

    def answer(self) -> None:
        """On the engine's thread. What a call raises is its caller's."""
        while self._calls:
            done, do = self._calls.popleft()
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(do())
                except Exception as error:
                    done.set_exception(error)

    def refuse(self) -> None:
        """There will be no more steps."""
        while self._calls:
            done, _ = self._calls.popleft()
            if done.set_running_or_notify_cancel():
                done.set_exception(EngineDeadError("the engine loop has ended"))
