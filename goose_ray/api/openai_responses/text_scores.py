"""Which tokens' log-probabilities stand beside the text of a message: those of its own tokens.

Thinking has none, nor has a call of a function. Whatever the steps that the tokens came in, each finds the same place.
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
        self._open: list[TokenScores] = []
        # bytes of text, and of its tokens, since the answer or the last call began
        self._num_text = self._num_scored = 0
        self._is_behind_call = False

    def of(self, delta: Delta) -> Sequence[TokenScores]:
        """Those that go with the delta's text, in order; they may have come before it."""
        scores = self._behind_thinking(delta)
        if not self._may_call:
            return scores
        self._open += scores
        mine = self._of_text(delta.text) if delta.text else []
        if delta.tool_calls:
            self._open, self._is_behind_call = [], True
            self._num_text = self._num_scored = 0
        if delta.finish_reason is not None and not self._is_behind_call:
            mine += self._open
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

    def _of_text(self, text: str) -> list[TokenScores]:
        """As many as it takes to write the text so far."""
        content = text.encode()
        if self._is_behind_call and not self._num_text:
            # The call's last tokens are among them, in front.
            pieces = [one.token.content for one in self._open]
            starts = [start for start in range(len(pieces)) if b"".join(pieces[start:]).startswith(content)]
            self._open = self._open[max(starts, default=0) :]
        self._num_text += len(content)
        count = 0
        while count < len(self._open) and self._num_scored < self._num_text:
            self._num_scored += len(self._open[count].token.content)
            count += 1
        mine, self._open = self._open[:count], self._open[count:]
        return mine
