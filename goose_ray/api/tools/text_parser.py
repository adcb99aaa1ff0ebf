"""What parsers of tool calls share: text in, events out, and what cannot be judged yet kept for the next piece.

Every state judges a character by those before it alone, so the events, joined, are the same however the text is cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from goose_ray.api.tools.call_scanner import CallScanner
from goose_ray.api.tools.events import ArgumentsPart, CallStart, ContentPart, ToolEvent

__all__ = ["TextParser"]


class TextParser(ABC):
    """White space before, between and behind calls is dropped, unless there is content beside it.

    A state is called with `is_last` while there is text in `_pending`, takes what it can off its front, and says
    whether it is to go on: with what is left, or in the state that is set now.
    """

    # up to here a call that has gone wrong takes the text as its arguments; empty: up to the end
    call_end = ""

    def __init__(self) -> None:
        self._pending = ""
        self._state: Callable[[bool], bool] = self._read_content
        self._scanner: CallScanner | None = None
        self._events: list[ToolEvent] = []
        self._num_calls = 0
        # white space that is content only if more content follows
        self._space: list[str] = []
        self._may_drop_space = True

    def feed(self, text: str) -> list[ToolEvent]:
        """What has become certain with this piece."""
        self._pending += text
        self._run(False)
        return self._taken()

    def finish(self) -> list[ToolEvent]:
        """What is left when the answer ends, wherever that is. Not to be fed any more."""
        self._run(True)
        if self._scanner is not None and not self._scanner.in_call:
            self._content(self._scanner.held)
        if self._space and not self._num_calls:
            self._events.append(ContentPart("".join(self._space)))
        return self._taken()

    @abstractmethod
    def _read_content(self, is_last: bool) -> bool: ...

    @abstractmethod
    def _read_between(self, is_last: bool) -> bool:
        """Behind a call."""
        ...

    def _run(self, is_last: bool) -> None:
        while self._pending and self._state(is_last):
            pass

    def _taken(self) -> list[ToolEvent]:
        taken, self._events = self._events, []
        return taken

    def _content(self, text: str) -> None:
        if not text:
            return
        if self._may_drop_space and text.isspace():
            self._space.append(text)
            return
        self._events.append(ContentPart("".join((*self._space, text))))
        self._space, self._may_drop_space = [], False

    def _content_up_to(self, markers: Sequence[str], is_last: bool) -> str | None:
        """Takes content up to the first of `markers` and that marker too, which is returned. Without one, keeps what
        may be the beginning of one.
        """
        found = [(place, marker) for marker in markers if (place := self._pending.find(marker)) >= 0]
        if not found:
            num_kept = 0 if is_last else _beginning(self._pending, markers)
            self._content(self._pending[: len(self._pending) - num_kept])
            self._pending = self._pending[len(self._pending) - num_kept :]
            return None
        place, marker = min(found)
        self._content(self._pending[:place])
        self._pending = self._pending[place + len(marker) :]
        return marker

    def _begin_calls(self, scanner: CallScanner) -> None:
        self._scanner = scanner
        self._state = self._read_calls

    def _read_calls(self, is_last: bool) -> bool:
        scanner = self._scanner
        assert scanner is not None
        self._pending = self._pending[scanner.feed(self._pending) :]
        for event in scanner.events:
            if isinstance(event, CallStart):
                self._num_calls += 1
                self._space, self._may_drop_space = [], True
            self._events.append(event)
        scanner.events = []
        if scanner.status == "open":
            return False
        self._scanner = None
        if scanner.status == "complete" or (scanner.in_call and not scanner.in_arguments):
            self._state = self._read_between
        elif scanner.in_arguments:
            self._state = self._read_broken_arguments
        else:
            self._content(scanner.held)
            self._state = self._read_content
        return True

    def _read_broken_arguments(self, is_last: bool) -> bool:
        """The client gets them as they are: the call is known to it already."""
        end = self._pending.find(self.call_end) if self.call_end else -1
        if end < 0:
            num_kept = 0 if is_last or not self.call_end else _beginning(self._pending, (self.call_end,))
            end = len(self._pending) - num_kept
        else:
            self._state = self._read_between
        if end:
            self._events.append(ArgumentsPart(self._pending[:end]))
        self._pending = self._pending[end:]
        return self._state == self._read_between


def _beginning(text: str, markers: Sequence[str]) -> int:
    """How many of the last characters of `text` may be the beginning of a marker."""
    longest = min(len(text), max(map(len, markers)) - 1)
    return next(
        (count for count in range(longest, 0, -1) if any(marker.startswith(text[-count:]) for marker in markers)), 0
    )
