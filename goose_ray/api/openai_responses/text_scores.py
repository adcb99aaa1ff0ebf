"""Which tokens' log-probabilities stand beside the text of a message: those of its own tokens.

Thinking has none, nor has a call of a function, nor what is written behind one. Whatever the steps that the tokens came
in, each finds the same place.
"""

from collections.abc import Sequence

from goose_ray.api.calls import Delta, TokenScores

__all__ = ["TextScores"]


class TextScores:
    """Of one answer. `may_call`: functions may be called in it."""

    def __init__(self, *, may_call: bool) -> None:
        self._may_call = may_call
        # of tokens before the first that is known to be no thinking; None: of those behind it
        self._thinking: list[TokenScores] | None = []
        # of tokens that may yet turn out to be part of a call
        self._held: list[TokenScores] = []
        # where the text begins in all of the answer, and its length so far, in characters
        self._start: int | None = None
        self._num_chars = 0
        self._is_behind_call = False

    def of(self, delta: Delta) -> Sequence[TokenScores]:
        """Those that go with the delta's first text, in order; they may have come before it."""
        scores = self._behind_thinking(delta)
        if not self._may_call:
            return scores
        if self._is_behind_call:
            return ()
        self._held += scores
        if self._start is None and self._held:
            self._start = self._held[0].offset
        for part in delta.parts:
            if not isinstance(part, str):
                break
            self._num_chars += len(part)
        end = (self._start or 0) + self._num_chars
        count = next((i for i, one in enumerate(self._held) if one.offset >= end), len(self._held))
        if delta.tool_calls:
            self._is_behind_call = True
        elif delta.finish_reason is not None:
            count = len(self._held)
        mine, self._held = self._held[:count], self._held[count:]
        return mine

    def _behind_thinking(self, delta: Delta) -> Sequence[TokenScores]:
        scores = delta.scores or ()
        if self._thinking is None or delta.num_reasoning_tokens is None:
            return scores
        self._thinking += scores
        if not (delta.text or delta.tool_calls) and delta.finish_reason is None:
            return ()
        behind, self._thinking = self._thinking[delta.num_reasoning_tokens :], None
        return behind
