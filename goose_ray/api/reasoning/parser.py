"""What a model thinks, apart from what it answers: `<think>…</think>` before the answer, in text that comes in pieces.

Every character is judged by those before it alone, so the parts, joined, are the same however the text is cut. Knows
neither tokens nor prompts.
"""

from typing import Literal, NamedTuple

__all__ = ["BEGIN", "END", "SPACE", "ReasoningParser", "ReasoningPart"]

BEGIN, END = "<think>", "</think>"
SPACE = " \t\r\n"


class ReasoningPart(NamedTuple):
    reasoning: str
    content: str


class ReasoningParser:
    """Of one answer; `is_begun`: the answer starts inside the thinking. White space next to a mark belongs to neither
    side. Never raises: an answer that does not begin with thinking is content to the last character.
    """

    def __init__(self, *, is_begun: bool) -> None:
        # as far as is known
        self.is_begun = is_begun
        self._at: Literal["start", "thinking", "gap", "content"] = "start"
        # may be the beginning of a mark
        self._pending = ""
        # white space that is reasoning only if more of it follows
        self._space: list[str] = []
        self._has_reasoning = False

    @property
    def is_over(self) -> bool:
        """All that follows is content."""
        return self._at in ("gap", "content")

    def feed(self, text: str) -> ReasoningPart:
        """What has become certain with this piece."""
        reasoning = ""
        text = self._pending + text
        self._pending = ""
        if self._at == "start":
            text = self._from_start(text)
        if self._at == "thinking":
            reasoning, text = self._from_thinking(text)
        if self._at == "gap":
            text = text.lstrip(SPACE)
            self._at = "content" if text else "gap"
        return ReasoningPart(reasoning, text)

    def finish(self) -> ReasoningPart:
        """What is left when the answer ends, wherever that is. Not to be fed any more."""
        left, self._pending = self._pending, ""
        if self._at == "start" and not self.is_begun:
            return ReasoningPart("", left)
        return ReasoningPart(self._reasoning(left), "")

    def _from_start(self, text: str) -> str:
        """What is to be read on with; empty while that is open."""
        begun = text.lstrip(SPACE)
        if begun.startswith(BEGIN):
            self._at, self.is_begun = "thinking", True
            return begun[len(BEGIN) :]
        if BEGIN.startswith(begun):
            self._pending = text
            return ""
        self._at = "thinking" if self.is_begun else "content"
        return text

    def _from_thinking(self, text: str) -> tuple[str, str]:
        """The reasoning in `text`, and what follows it."""
        end = text.find(END)
        if end < 0:
            kept = _beginning_of_end(text)
            self._pending = text[len(text) - kept :]
            return self._reasoning(text[: len(text) - kept]), ""
        reasoning = self._reasoning(text[:end])
        self._at = "gap"
        return reasoning, text[end + len(END) :]

    def _reasoning(self, text: str) -> str:
        """Without the white space around all of it."""
        body = text.rstrip(SPACE)
        if not body:
            self._space.append(text)
            return ""
        before, self._space = "".join(self._space), [text[len(body) :]]
        whole = before + body if self._has_reasoning else (before + body).lstrip(SPACE)
        self._has_reasoning = True
        return whole


def _beginning_of_end(text: str) -> int:
    """How many of the last characters of `text` may be the beginning of the mark."""
    longest = min(len(text), len(END) - 1)
    return next((count for count in range(longest, 0, -1) if END.startswith(text[-count:])), 0)
