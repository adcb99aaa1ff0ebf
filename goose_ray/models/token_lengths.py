"""How much text one token can stand for at most, so that text that is far too long need not be tokenised to say so.

Looks at the parts of a tokenizer by name; of one whose parts it does not know it claims nothing.
"""

import json
from typing import Any

from tokenizers import Tokenizer

from goose_ray.models.token_bytes import TokenBytes

__all__ = ["longest_token"]

# Parts that keep every byte of the text. What drops some (whitespace, accents) lets any length of it become few tokens.
_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split"})
_NORMALIZERS = frozenset({"NFC", "Prepend", "Replace", "Sequence"})
# Composing makes text shorter by at most a factor of 3: https://www.unicode.org/faq/normalization.html
_COMPOSING_FACTOR = 3


def longest_token(tokenizer: Tokenizer, token_bytes: TokenBytes) -> int | None:
    """Bytes of UTF-8 that a token stands for at most, on the way in; None if that is not known."""
    normalizers, pre_tokenizers = _parts(tokenizer.normalizer), _parts(tokenizer.pre_tokenizer)
    if any(part["type"] not in _NORMALIZERS or _shortens(part) for part in normalizers):
        return None
    if any(part["type"] not in _PRE_TOKENIZERS or part.get("behavior") == "Removed" for part in pre_tokenizers):
        return None
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    if not _spells_everything(tokenizer.model):
        return None
    longest = max((len(token_bytes(token_id)) for token_id in range(tokenizer.get_vocab_size())), default=0)
    composes = any(part["type"] == "NFC" for part in normalizers)
    # A character that has no token may be one by itself.
    return max(longest, 4) * (_COMPOSING_FACTOR if composes else 1)


def _parts(part: Any) -> list[dict[str, Any]]:
    """The component and all within it, as the tokenizer file has them."""
    return [] if part is None else _flattened(json.loads(part.__getstate__()))


def _flattened(part: dict[str, Any]) -> list[dict[str, Any]]:
    inner = part.get("normalizers") or part.get("pretokenizers") or ()
    return [part, *(found for entry in inner for found in _flattened(entry))]


def _shortens(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] != "Replace":
        return False
    pattern = normalizer["pattern"].get("String")
    return pattern is None or len(normalizer["content"].encode()) < len(pattern.encode())


def _spells_everything(model: Any) -> bool:
    """Whether no run of unknown characters becomes one unknown token, however long it is."""
    name = type(model).__name__
    if name == "BPE":
        return model.byte_fallback or not (model.unk_token and model.fuse_unk)
    return name == "Unigram" and bool(model.byte_fallback)
