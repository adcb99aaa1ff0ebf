"""Parsers of answers that a schema has forced to be calls: `tool_choice` is `required`, or names a function.

The shapes are vLLM's: a list of `{"name": …, "parameters": {…}}`, or the arguments of the named function alone.
"""

from goose_ray.api.tools.call_scanner import CallScanner
from goose_ray.api.tools.events import ArgumentsPart, CallStart, ToolEvent
from goose_ray.api.tools.text_parser import TextParser

__all__ = ["NamedParser", "RequiredParser"]


class RequiredParser(TextParser):
    def __init__(self) -> None:
        super().__init__()
        self._begin_calls(CallScanner())

    def _read_content(self, is_last: bool) -> bool:
        """Nothing, unless the schema was not kept to."""
        self._content(self._pending)
        self._pending = ""
        return False

    def _read_between(self, is_last: bool) -> bool:
        return self._read_content(is_last)


class NamedParser:
    def __init__(self, name: str) -> None:
        self._name = name
        self._is_told = False

    def feed(self, text: str) -> list[ToolEvent]:
        if not text:
            return []
        events: list[ToolEvent] = [] if self._is_told else [CallStart(self._name)]
        self._is_told = True
        return [*events, ArgumentsPart(text)]

    def finish(self) -> list[ToolEvent]:
        return []
