"""Texts that must not come up, as the sequences of tokens that spell them. Knows a tokenizer, and no logits."""

from collections.abc import Sequence

from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["spellings", "without_frame"]


def spellings(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Of each word, at the beginning of a text and behind a space, as vLLM takes it: a tokenizer may still spell the
    same text otherwise. Distinct, in order; a word without tokens has none.
    """
    frame = tokenizer.encode("") if words else []
    found = (without_frame(tokenizer.encode(text), frame) for word in words for text in (word, " " + word.lstrip()))
    return tuple(dict.fromkeys(ids for ids in found if ids))


def without_frame(ids: Sequence[int], frame: Sequence[int]) -> tuple[int, ...]:
    """Without the special tokens that the tokenizer puts around every text: what is left of none."""
    start = 0
    while start < min(len(ids), len(frame)) and ids[start] == frame[start]:
        start += 1
    return tuple(ids[start : len(ids) - (len(frame) - start)])
