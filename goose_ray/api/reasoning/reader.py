"""Thinking taken out of the text of an answer, delta by delta, and its tokens counted.

Knows deltas and what tokens stand for; knows no prompts.
"""

from dataclasses import replace

from goose_ray.api.calls import Delta
from goose_ray.api.reasoning.parser import ReasoningParser
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["ReasoningReader"]


class ReasoningReader:
    """Of one answer. `shown` are the special tokens that are text in it; thinking that is not `told` is left out."""

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int], *, is_begun: bool, told: bool) -> None:
        self._parser = ReasoningParser(is_begun=is_begun)
        # Where it ends is a matter of tokens too, and the text of a token may come steps after it.
        self._by_token = ReasoningParser(is_begun=is_begun)
        self._tokenizer = tokenizer
        self._shown = shown
        self._is_told = told
        self._num_read = 0
        self._num_tokens = 0

    def read(self, delta: Delta) -> Delta:
        reasoning, content = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            last = self._parser.finish()
            reasoning, content = reasoning + last.reasoning, content + last.content
        self._count(delta.token_ids)
        prompt = delta.prompt and replace(delta.prompt, tells_reasoning=self._is_told)
        told = reasoning if self._is_told else ""
        return replace(delta, reasoning=told, text=content, num_reasoning_tokens=self._num_tokens, prompt=prompt)

    def _count(self, token_ids: tuple[int, ...]) -> None:
        """Marks included; none while it is not known to have begun."""
        for token_id in token_ids:
            if self._by_token.is_over:
                return
            self._num_read += 1
            self._by_token.feed(self._text_of(token_id))
            if self._by_token.is_begun:
                self._num_tokens = self._num_read

    def _text_of(self, token_id: int) -> str:
        """A character a byte: marks and white space are ASCII."""
        if not self._by_token.is_begun and not self._tokenizer.decode((token_id,), self._shown):
            # a special token, which is no text
            return ""
        return self._tokenizer.token_bytes(token_id).decode("latin-1")
