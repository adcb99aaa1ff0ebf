"""The bytes that each token of a vocabulary stands for, whichever of the usual spellings the vocabulary has.

A tokenizer decodes runs of tokens: of a single one it drops a leading space, or the parts of characters. So what is
looked at here is the token as the vocabulary spells it.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer

__all__ = ["TokenBytes"]

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
# SentencePiece's mark for a space.
_SPACE_MARK = "\u2581"


class TokenBytes:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder
        decoders = _types(json.loads(decoder.__getstate__())) if decoder is not None else set()
        self._is_byte_level = "ByteLevel" in decoders
        self._has_byte_fallback = "ByteFallback" in decoders
        self._added = frozenset(tokenizer.get_added_tokens_decoder())
        self._byte_of = _byte_level_alphabet()

    def __call__(self, token_id: int) -> bytes:
        """Empty if the vocabulary has no such token: a model's logits may be wider."""
        spelling: str | None = self._tokenizer.id_to_token(token_id)
        if spelling is None:
            return b""
        if token_id in self._added:
            return spelling.encode()
        if self._is_byte_level and all(character in self._byte_of for character in spelling):
            return bytes(self._byte_of[character] for character in spelling)
        if self._has_byte_fallback and (match := _BYTE_FALLBACK.fullmatch(spelling)):
            return bytes.fromhex(match[1])
        return spelling.replace(_SPACE_MARK, " ").encode()


def _types(decoder: dict[str, Any]) -> set[str]:
    return {decoder["type"]}.union(*(_types(part) for part in decoder.get("decoders", ())))


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE spells a printable Latin-1 byte as itself and the n-th other byte as the character 256 + n."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
