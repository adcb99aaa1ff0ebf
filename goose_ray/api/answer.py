"""One answer, put together from its deltas. Knows nothing of its shape on the wire."""

from goose_ray.api.calls import AnswerEnd, Delta, PromptInfo, TokenScores, ToolCallDelta
from goose_ray.engine.request import SpeculationStats
from goose_ray.errors import EngineDeadError

__all__ = ["Answer"]


class Answer:
    """One sequence's deltas, put together."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self.token_ids: list[int] = []
        # None: nobody looked for thinking in it
        self.num_reasoning_tokens: int | None = None
        self.tool_calls: list[ToolCallDelta] = []
        self.finish_reason: AnswerEnd | None = None
        self.stop_reason: str | int | None = None
        self.scores: list[TokenScores] | None = None
        self._prompt: PromptInfo | None = None
        self._stats: SpeculationStats | None = None

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._reasoning.append(delta.reasoning)
        self.num_reasoning_tokens = delta.num_reasoning_tokens
        self.token_ids.extend(delta.token_ids)
        self.tool_calls.extend(delta.tool_calls)
        if delta.scores is not None:
            self.scores = [*(self.scores or ()), *delta.scores]
        if delta.prompt is not None:
            self._prompt = delta.prompt
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason
            self._stats = delta.stats

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered."""
        return "".join(self._reasoning)

    @property
    def is_begun(self) -> bool:
        """The first delta has come."""
        return self._prompt is not None

    @property
    def prompt(self) -> PromptInfo:
        if self._prompt is None:
            raise EngineDeadError("the replica answered without saying what the prompt came to")
        return self._prompt

    @property
    def stats(self) -> SpeculationStats:
        if self._stats is None:
            raise EngineDeadError("the replica ended its answer before it was finished")
        return self._stats
