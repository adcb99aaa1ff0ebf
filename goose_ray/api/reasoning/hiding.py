"""Log-probabilities of the answer alone, where the client does not want to be told what the model thinks.

Stands behind failover, which needs a score of every token. Knows deltas alone.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from goose_ray.api.calls import Delta, TokenScores

__all__ = ["without_scores_of_thinking"]


async def without_scores_of_thinking(
    deltas: AsyncGenerator[tuple[int, Delta]],
) -> AsyncGenerator[tuple[int, Delta]]:
    """The same (index of the answer, delta); closing it closes `deltas`."""
    answers: defaultdict[int, _Scores] = defaultdict(_Scores)
    async with aclosing(deltas):
        async for index, delta in deltas:
            yield index, answers[index].without_thinking(delta)


class _Scores:
    """Of one answer."""

    def __init__(self) -> None:
        self._num_tokens = 0
        # of tokens of which it is not known yet whether they are thinking
        self._held: tuple[TokenScores, ...] = ()

    def without_thinking(self, delta: Delta) -> Delta:
        if delta.scores is None or delta.num_reasoning_tokens is None:
            return delta
        self._num_tokens += len(delta.token_ids)
        self._held += delta.scores
        if not (delta.num_reasoning_tokens or delta.text or delta.finish_reason):
            return replace(delta, scores=())
        first = self._num_tokens - len(self._held)
        told, self._held = self._held[max(0, delta.num_reasoning_tokens - first) :], ()
        return replace(delta, scores=told)
