"""Finds calls in JSON text that comes in pieces: `{"name": …, "arguments": {…}}`, or a list of such objects.

A call is told as soon as its name and the first key of its arguments are known, and its arguments as they come, in the
model's own spelling. Until then its text is `held`: if it turns out to be no call, it is content. Knows no markers.
"""

import json
from collections.abc import Callable, Set

from goose_ray.api.tools.events import ArgumentsPart, CallStart, ToolEvent
from goose_ray.api.tools.json_scanner import WHITESPACE, JsonScanner, ScanStatus

__all__ = ["CallScanner"]

_ARGUMENTS = ("arguments", "parameters")
# of a call that may be mistaken for any other JSON
_USUAL_KEYS = frozenset(("name", "type", "id", *_ARGUMENTS))


class CallScanner:
    """`lead` is what marked the text as a call, for whom it may turn out to be content.

    With `names`, text in which nothing marks a call is one only if it calls one of these and has no unusual keys.
    """

    def __init__(self, lead: str = "", *, names: Set[str] | None = None) -> None:
        self.status: ScanStatus = "open"
        self.events: list[ToolEvent] = []
        self._held = [lead]
        self._names = names
        self._is_bare = False
        self._is_list = False
        self._at: Callable[[str], bool] = self._at_start
        self._inner: JsonScanner | None = None
        self._inner_text: list[str] = []
        self._key: str | None = None
        self._name: str | None = None
        # of the object in progress: the text of its arguments until they can be told
        self._arguments: str | None = None
        self._is_told = False

    @classmethod
    def of_arguments(cls, name: str, lead: str) -> "CallScanner":
        """For a format that writes the name elsewhere: the text is the arguments alone."""
        scanner = cls(lead)
        scanner._is_bare = True
        scanner._name, scanner._key = name, _ARGUMENTS[0]
        scanner._at = scanner._at_value
        return scanner

    @property
    def held(self) -> str:
        """The text so far that is not part of a call, or not known to be."""
        return "".join(self._held)

    @property
    def in_call(self) -> bool:
        """The text ended, or went wrong, inside a call that has been told."""
        return self._is_told

    @property
    def in_arguments(self) -> bool:
        """As `in_call`, and before the end of its arguments."""
        return self._is_told and self._inner is not None and self._key in _ARGUMENTS

    def feed(self, text: str) -> int:
        """Goes on with `text`; returns how many of its characters were read. Adds to `events`."""
        at = 0
        while at < len(text) and self.status == "open":
            if self._inner is not None:
                at = self._read_inner(self._inner, text, at)
            elif text[at] in WHITESPACE or self._at(text[at]):
                # a value is read from its first character on by its own scanner
                if self._inner is None:
                    self._hold(text[at])
                    at += 1
            else:
                self.status = "malformed"
        return at

    def _at_start(self, character: str) -> bool:
        if character == "[":
            self._is_list = True
            self._at = self._at_object
            return True
        return self._at_object(character)

    def _at_object(self, character: str) -> bool:
        self._name = self._arguments = self._key = None
        self._is_told = False
        self._at = self._at_key
        return character == "{"

    def _at_key(self, character: str) -> bool:
        """Of an object without keys nothing can be called, so a brace is none of what may come."""
        if character != '"':
            return False
        self._key = None
        self._begin_inner()
        return True

    def _at_colon(self, character: str) -> bool:
        self._at = self._at_value
        return character == ":"

    def _at_value(self, character: str) -> bool:
        self._begin_inner()
        if self._is_bare and character != "{":
            return False
        # arguments given twice
        return self._key not in _ARGUMENTS or self._is_told or self._arguments is None

    def _after_value(self, character: str) -> bool:
        if character == ",":
            self._at = self._at_key
            return True
        return character == "}" and self._end_object()

    def _after_object(self, character: str) -> bool:
        if character == "]":
            self.status = "complete"
            return True
        self._at = self._at_object
        return character == ","

    def _begin_inner(self) -> None:
        self._inner = JsonScanner()
        self._inner_text = []

    def _read_inner(self, inner: JsonScanner, text: str, at: int) -> int:
        end = inner.feed(text, at)
        piece = text[at:end]
        if self.in_arguments:
            if piece:
                self.events.append(ArgumentsPart(piece))
        elif not self._is_told:
            self._held.append(piece)
            self._inner_text.append(piece)
            is_arguments = self._key in _ARGUMENTS and self._inner_text[0].startswith("{")
            if is_arguments and inner.has_key and self._name is not None:
                self._tell("".join(self._inner_text))
        if inner.status == "malformed":
            self.status = "malformed"
        elif inner.status == "complete":
            self._inner = None
            if not self._inner_ended():
                self.status = "malformed"
        return end

    def _inner_ended(self) -> bool:
        """False if what was read cannot be part of a call."""
        if self._key is None:
            return self._key_ended()
        self._at = self._after_value
        if self._is_bare:
            self.status = "complete"
        if self._is_told:
            return True
        text = "".join(self._inner_text)
        if self._key == "name":
            if not self._accept_name(text):
                return False
            if self._arguments is not None:
                return self._tell(self._arguments)
        elif self._key in _ARGUMENTS:
            self._arguments = _object_text(text)
            if self._arguments is None:
                return False
            if self._name is not None:
                return self._tell(self._arguments)
        return True

    def _accept_name(self, text: str) -> bool:
        if not text.startswith('"'):
            return False
        self._name = json.loads(text)
        # Lone surrogates, which JSON can spell and UTF-8 cannot, are not printable.
        if not self._name or not self._name.isprintable():
            return False
        return self._names is None or self._name in self._names

    def _key_ended(self) -> bool:
        self._key = json.loads("".join(self._inner_text)) if not self._is_told else ""
        self._at = self._at_colon
        return self._is_told or self._names is None or self._key in _USUAL_KEYS

    def _end_object(self) -> bool:
        if not self._is_told:
            if self._name is None:
                return False
            self._tell("{}")
        self._at = self._after_object
        if not self._is_list:
            self.status = "complete"
        return True

    def _tell(self, arguments: str) -> bool:
        assert self._name is not None
        self.events.append(CallStart(self._name))
        if arguments:
            self.events.append(ArgumentsPart(arguments))
        self._is_told = True
        self._held = []
        return True

    def _hold(self, text: str) -> None:
        if not self._is_told:
            self._held.append(text)


def _object_text(text: str) -> str | None:
    """The arguments in `text`: an object, nothing (null), or a string that holds an object. None if it is no such."""
    if text == "null":
        return "{}"
    if text.startswith('"'):
        text = json.loads(text)
        scanner = JsonScanner()
        if scanner.feed(text) < len(text.rstrip(WHITESPACE)) or not _is_text(text):
            return None
        text = text.strip(WHITESPACE)
        if scanner.status != "complete":
            return None
    return text if text.startswith("{") else None


def _is_text(text: str) -> bool:
    """JSON can spell lone surrogates, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
