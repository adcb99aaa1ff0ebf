"""A line at the foot of a terminal that stays while text scrolls above it. Nothing where there is no terminal."""

import shutil
import sys
import unicodedata
from types import TracebackType
from typing import Self

__all__ = ["StatusLine", "printable"]

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_CLEAR_LINE, _DIM, _USUAL = "\x1b[2K", "\x1b[2m", "\x1b[0m"
_UP = "\x1b[A"


class StatusLine:
    """Text is written by `write`, what stands beside it by `aside`, the line by `show`; at its end the line goes."""

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._rows = 0
        self._is_aside = False

    def __enter__(self) -> Self:
        if self._active:
            self._rows = shutil.get_terminal_size().lines
            # Room below first, then a scrolling region that leaves the last row out.
            self._out(f"\n{_UP}{_SAVE}\x1b[1;{self._rows - 1}r{_RESTORE}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            self._out(f"{_SAVE}\x1b[{self._rows};1H{_CLEAR_LINE}\x1b[r{_RESTORE}")

    def show(self, text: str) -> None:
        if self._active:
            width = shutil.get_terminal_size().columns
            self._out(f"{_SAVE}\x1b[{self._rows};1H{_CLEAR_LINE}{_DIM}{text[:width]}{_USUAL}{_RESTORE}")

    def write(self, text: str) -> None:
        if text and self._is_aside:
            self._out("\n\n")
            self._is_aside = False
        self._out(printable(text) if self._active else text)

    def aside(self, text: str) -> None:
        """Dimmed, and in paragraphs of its own; not where text may be for a machine."""
        if self._active:
            self._is_aside = True
            self._out(f"{_DIM}{printable(text)}{_USUAL}")

    @staticmethod
    def _out(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def printable(text: str) -> str:
    """Without characters that would move the cursor or change the terminal: a model may write any."""
    return "".join(one for one in text if one in "\n\t" or unicodedata.category(one) != "Cc")
