"""Token ids to text, as they come: every piece is whole characters, and all pieces together are the text of all ids.

Decodes a short window of the last tokens, because how a token reads may depend on those before it (a leading space,
bytes of one character spread over tokens). Knows nothing about stop conditions.
"""

from collections.abc import Sequence
from functools import partial

from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

# A tokenizer's stand-in for bytes that are not (yet) UTF-8.
_REPLACEMENT = "\ufffd"
# Above this many tokens the window drops what lies before its last clean boundary.
_WINDOW_TOKENS = 16
# A run of undecodable bytes has no clean boundary; above this many tokens one is searched for inside it.
_MAX_WINDOW_TOKENS = 64
# No character of UTF-8 is longer than this, so no more than one byte less can be waiting for its end.
_MAX_CHARACTER_BYTES = 4


class Detokenizer:
    """One output's text. The cost of a token does not grow with the output.

    Trailing U+FFFD is held back: it may be the beginning of a character whose other bytes are still to come.
    """

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int] = frozenset()) -> None:
        """`shown` are special tokens that are text here."""
        self._decode = partial(tokenizer.decode, shown=shown) if shown else tokenizer.decode
        self._window: list[int] = []
        # characters of the window's text that were returned already
        self._num_returned = 0
        # the last index of the window before which all text was whole when it was reached
        self._boundary = 0

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that has become certain with these tokens; may be empty."""
        if not token_ids:
            return ""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        whole = text.rstrip(_REPLACEMENT)
        new = whole[self._num_returned :]
        self._num_returned = max(self._num_returned, len(whole))
        if len(whole) == len(text):
            if len(self._window) > _WINDOW_TOKENS:
                self._slide(text, new)
            self._boundary = len(self._window)
        elif len(self._window) > _MAX_WINDOW_TOKENS:
            new += self._break_run(text)
        return new

    def flush(self) -> str:
        """The text still held back, as the tokenizer gives it: what was not completed is U+FFFD. Ends the output."""
        text = self._decode(self._window) if self._window else ""
        held = text[self._num_returned :]
        self._window, self._num_returned, self._boundary = [], 0, 0
        return held

    def _slide(self, text: str, new: str) -> None:
        """Lets the window begin at the last boundary, where the tokens that have just been fed begin."""
        tail = self._decode(self._window[self._boundary :])
        if tail and text.endswith(tail):
            del self._window[: self._boundary]
            self._num_returned = len(tail)
        elif not tail and not new:
            # Tokens without text (special ones): as context they say nothing, so those before them stay.
            del self._window[self._boundary :]

    def _break_run(self, text: str) -> str:
        """Gives up all but the last few tokens of a long run of bytes that make no character."""
        last, num_waiting = len(self._window), _MAX_CHARACTER_BYTES - 1
        while last > 1 and num_waiting:
            last -= 1
            # A token without text (a special one) between the bytes of a character is none of them.
            num_waiting -= self._decode(self._window[last : last + 1]) != ""
        for split in range(last, max(0, last - 2 * _MAX_CHARACTER_BYTES), -1):
            head = self._decode(self._window[:split])
            if head + self._decode(self._window[split:]) == text:
                break
        else:
            split, head = len(self._window), text
        new = text[self._num_returned : len(head)]
        del self._window[:split]
        self._num_returned = max(0, self._num_returned - len(head))
        self._boundary = 0
        return new
