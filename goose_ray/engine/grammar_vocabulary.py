"""A model's tokens as the grammar library sees them, and its masks as ours: one bit for each token of the model.

The library numbers the tokenizer's tokens; a model's logits may be wider (padded) or, rarely, narrower.
"""

import json
from collections.abc import Iterable, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["GrammarVocabulary", "MaskArray"]

MaskArray = NDArray[np.int32]
_BITS = 32


class GrammarVocabulary:
    """Takes a second and some memory to build; never changes. `vocab_size` is the width of the model's logits."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        definition, num_known = tokenizer.definition, tokenizer.vocab_size
        eos = [token for token in eos_token_ids if token < num_known]
        self._num_words = -(-vocab_size // _BITS)
        self._exists = _bits(range(vocab_size), self._num_words)
        self._not_eos = ~_bits((token for token in eos if token < vocab_size), self._num_words)
        if not eos:
            # The library wants one, and would take some token of the text for it.
            definition = _with_end(definition, num_known)
            eos, num_known = [num_known], num_known + 1
            self._exists &= ~_bits((token for token in eos if token < vocab_size), self._num_words)
        # what another process makes the same tokenizer of
        self.arguments = {"definition": definition, "n_vocab": max(vocab_size, num_known), "eos_token": eos}
        self.tokenizer = LLTokenizer(definition, n_vocab=max(vocab_size, num_known), eos_token=eos)

    def mask(self, matcher: LLMatcher) -> MaskArray:
        """[num_words] int32: bit t % 32 of word t // 32 is set if token t may come next. After an error or the end of
        the grammar of no meaning.
        """
        mask: MaskArray = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: self._num_words] & self._exists
        return mask

    def goes_on(self, mask: MaskArray) -> bool:
        """Whether it allows any token but the end of sequence."""
        return bool((mask & self._not_eos).any())

    def forced(self, mask: MaskArray, *, most: int) -> int | None:
        """The longest token that a mask of at most `most` allows, if all others begin it: there is one text only. None
        if not.
        """
        (words,) = mask.nonzero()
        if not 0 < len(words) <= most or (mask & ~self._not_eos).any():
            return None
        bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(len(words), _BITS)
        rows, columns = bits.nonzero()
        tokens = (words[rows] * _BITS + columns).tolist()
        if len(tokens) == 1:
            return int(tokens[0])
        if len(tokens) > most:
            return None
        texts = {token: self.tokenizer.decode_bytes([token]) for token in tokens}
        longest = max(tokens, key=lambda token: len(texts[token]))
        return longest if all(texts[longest].startswith(text) for text in texts.values()) else None


def _bits(tokens: Iterable[int], num_words: int) -> MaskArray:
    flags = np.zeros(num_words * _BITS, dtype=np.bool_)
    flags[np.fromiter(tokens, np.int64)] = True
    return np.packbits(flags, bitorder="little").view(np.int32)


def _with_end(definition: str, token_id: int) -> str:
    """The tokenizer with an end-of-sequence token that no model has."""
    parsed = json.loads(definition)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    parsed["added_tokens"].append({"id": token_id, "content": "<|no-model-ends-with-this|>", "special": True, **flags})
    return json.dumps(parsed)
