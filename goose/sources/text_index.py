"""Finds earlier occurrences of the end of a text in many texts: one chain of occurrences for each n-gram.

Texts grow at their end and leave as a whole. A token costs O(1) when it comes and O(1) when it goes, however many there
are: an occurrence is linked to the one before it and the one after it. Knows nothing of requests, salts or limits.
"""

from array import array
from collections.abc import Iterator, Sequence

from goose.tree import IntArray

__all__ = ["INDEXED_LENGTHS", "TextIndex"]

# Of the n-grams that are indexed, longest first. What matches for longer is found below the longest of them.
INDEXED_LENGTHS = (8, 4, 2, 1)
_NONE = -1
_ITEM_BYTES = 4


class _Text:
    """Tokens, and for each indexed length the occurrence before and after the one at each offset."""

    __slots__ = ("after", "before", "tokens")

    def __init__(self) -> None:
        # [num_tokens]
        self.tokens = array("i")
        # [num_lengths][num_tokens]: a position, or -1
        self.before = [array("q") for _ in INDEXED_LENGTHS]
        self.after = [array("q") for _ in INDEXED_LENGTHS]


class TextIndex:
    """A *position* is a place in a text, `text << 32 | offset`, and stands for the n-gram that ends just before it.

    So only n-grams with a token behind them are indexed, and the end of a text does not match itself.
    """

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}
        # [num_lengths]: n-gram -> its latest position
        self._latest: list[dict[bytes, int]] = [{} for _ in INDEXED_LENGTHS]
        self._next_text = 0
        self.num_tokens = 0

    @property
    def num_texts(self) -> int:
        return len(self._texts)

    def add(self) -> int:
        """The number of a new, empty text. Numbers are not used again."""
        text = self._next_text
        self._next_text += 1
        self._texts[text] = _Text()
        return text

    def length(self, text: int) -> int:
        return len(self._texts[text].tokens)

    def tail(self, text: int, length: int) -> list[int]:
        """The last `length` tokens of a text, or all of them."""
        tokens = self._texts[text].tokens
        return tokens[max(0, len(tokens) - length) :].tolist()

    def extend(self, text: int, tokens: Sequence[int] | IntArray) -> None:
        kept = self._texts[text]
        first = len(kept.tokens)
        kept.tokens.extend(array("i", [int(token) for token in tokens]))
        start = max(0, first - INDEXED_LENGTHS[0])
        window = kept.tokens[start:].tobytes()
        for which, length in enumerate(INDEXED_LENGTHS):
            latest, before, after = self._latest[which], kept.before[which], kept.after[which]
            for offset in range(first, len(kept.tokens)):
                position = text << 32 | offset
                last = _NONE
                if offset >= length:
                    end = (offset - start) * _ITEM_BYTES
                    key = window[end - length * _ITEM_BYTES : end]
                    last = latest.get(key, _NONE)
                    latest[key] = position
                before.append(last)
                after.append(_NONE)
                if last >= 0:
                    self._texts[last >> 32].after[which][last & 0xFFFFFFFF] = position
        self.num_tokens += len(kept.tokens) - first

    def remove(self, text: int) -> None:
        """Forgets a text and every n-gram that occurred nowhere else."""
        kept = self._texts[text]
        for which, length in enumerate(INDEXED_LENGTHS):
            for offset in range(length, len(kept.tokens)):
                before, after = kept.before[which][offset], kept.after[which][offset]
                if before >= 0:
                    self._texts[before >> 32].after[which][before & 0xFFFFFFFF] = after
                if after >= 0:
                    self._texts[after >> 32].before[which][after & 0xFFFFFFFF] = before
                    continue
                key = kept.tokens[offset - length : offset].tobytes()
                if before >= 0:
                    self._latest[which][key] = before
                else:
                    del self._latest[which][key]
        self.num_tokens -= len(kept.tokens)
        del self._texts[text]

    def occurrences(self, tail: Sequence[int], which: int) -> Iterator[int]:
        """Positions behind the last `INDEXED_LENGTHS[which]` tokens of `tail`, latest first."""
        length = INDEXED_LENGTHS[which]
        if len(tail) < length:
            return
        position = self._latest[which].get(array("i", tail[len(tail) - length :]).tobytes(), _NONE)
        while position >= 0:
            yield position
            position = self._texts[position >> 32].before[which][position & 0xFFFFFFFF]

    def ahead(self, position: int, length: int) -> "array[int]":
        """Up to `length` tokens from a position on."""
        offset = position & 0xFFFFFFFF
        return self._texts[position >> 32].tokens[offset : offset + length]

    def behind(self, position: int, length: int) -> "array[int]":
        """Up to `length` tokens that end just before a position."""
        offset = position & 0xFFFFFFFF
        return self._texts[position >> 32].tokens[max(0, offset - length) : offset]

    def check_integrity(self) -> None:
        """Counts everything again, for tests. Raises RuntimeError naming what is wrong."""
        if self.num_tokens != sum(len(text.tokens) for text in self._texts.values()):
            raise RuntimeError(f"num_tokens is {self.num_tokens}, not what the texts hold")
        for which, length in enumerate(INDEXED_LENGTHS):
            expected: dict[bytes, set[int]] = {}
            for number, text in self._texts.items():
                for offset in range(length, len(text.tokens)):
                    key = text.tokens[offset - length : offset].tobytes()
                    expected.setdefault(key, set()).add(number << 32 | offset)
            if self._latest[which].keys() != expected.keys():
                raise RuntimeError(f"the index of length {length} knows other n-grams than the texts hold")
            for key, positions in expected.items():
                chain = list(self.occurrences(array("i", key).tolist(), which))
                if len(chain) != len(positions) or set(chain) != positions:
                    raise RuntimeError(f"n-gram {array('i', key).tolist()}: {chain} is not {sorted(positions)}")
                afters = [self._texts[p >> 32].after[which][p & 0xFFFFFFFF] for p in chain]
                if afters != [_NONE, *chain[:-1]]:
                    raise RuntimeError(f"n-gram {array('i', key).tolist()}: links forward are not links back")
