"""Follows one JSON value through text that comes in pieces: where it ends, or where it stops being JSON.

Strict (RFC 8259), and the same whatever the pieces: every character is judged by those before it alone. Builds nothing.
"""

import re
from typing import Literal

__all__ = ["WHITESPACE", "JsonScanner", "ScanStatus"]

ScanStatus = Literal["open", "complete", "malformed"]

WHITESPACE = " \t\n\r"
_SPACE = re.compile(f"[{WHITESPACE}]*")
# what a string may hold without a closer look
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPED = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
# numbers, true, false, null: checked when they end
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_WHOLE_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_CLOSER = {"{": "}", "[": "]"}

_Expected = Literal["value", "value or end", "key", "key or end", "colon", "next"]


class JsonScanner:
    """A number ends with the character behind it, which is not its own; every other value with its last character."""

    def __init__(self) -> None:
        self.status: ScanStatus = "open"
        # some object's first key is known to be one
        self.has_key = False
        # what closes the open containers, the innermost last
        self._closers: list[str] = []
        self._expected: _Expected = "value"
        self._in_string = False
        self._is_key = False
        self._is_escaped = False
        self._num_hex_left = 0
        self._scalar = ""

    def feed(self, text: str, start: int = 0) -> int:
        """Goes on at `text[start]`; returns the place behind the last character that is the value's."""
        at = start
        while at < len(text) and self.status == "open":
            if self._in_string:
                at = self._string(text, at)
            elif self._scalar:
                at = self._rest_of_scalar(text, at)
            else:
                at = self._structure(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if not self._is_escaped and not self._num_hex_left:
            at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text):
                return at
        character = text[at]
        if self._num_hex_left:
            if character not in _HEX:
                return self._malformed(at)
            self._num_hex_left -= 1
        elif self._is_escaped:
            self._is_escaped = False
            if character == "u":
                self._num_hex_left = 4
            elif character not in _ESCAPED:
                return self._malformed(at)
        elif character == '"':
            self._in_string = False
            if self._is_key:
                self._expected = "colon"
            else:
                self._value_ended()
        elif character == "\\":
            self._is_escaped = True
        else:
            return self._malformed(at)
        return at + 1

    def _rest_of_scalar(self, text: str, at: int) -> int:
        end = _SCALAR.match(text, at).end()  # type: ignore[union-attr]
        self._scalar += text[at:end]
        if end < len(text):
            if not _WHOLE_SCALAR.fullmatch(self._scalar):
                return self._malformed(end)
            self._scalar = ""
            self._value_ended()
        return end

    def _structure(self, text: str, at: int) -> int:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return at
        character = text[at]
        expected = self._expected
        if self._closers and character == self._closers[-1] and expected in ("next", "value or end", "key or end"):
            self._closers.pop()
            self._value_ended()
        elif expected in ("value", "value or end") and self._begins_value(character):
            pass
        elif expected in ("key", "key or end") and character == '"':
            self._in_string = self._is_key = True
        elif expected == "colon" and character == ":":
            self._expected = "value"
            self.has_key = True
        elif expected == "next" and character == ",":
            self._expected = "key" if self._closers[-1] == "}" else "value"
        else:
            return self._malformed(at)
        return at + 1

    def _begins_value(self, character: str) -> bool:
        if character in _CLOSER:
            self._closers.append(_CLOSER[character])
            self._expected = "key or end" if character == "{" else "value or end"
        elif character == '"':
            self._in_string, self._is_key = True, False
        elif character in "-0123456789tfn":
            self._scalar = character
        else:
            return False
        return True

    def _value_ended(self) -> None:
        if self._closers:
            self._expected = "next"
        else:
            self.status = "complete"

    def _malformed(self, at: int) -> int:
        self.status = "malformed"
        return at
