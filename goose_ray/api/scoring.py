"""Log-probabilities as the client is told them: tokens by their bytes and their place in the text.

Knows a tokenizer, and one answer at a time.
"""

import codecs
from collections.abc import Sequence

from goose_ray.api.calls import LikelyToken, ScoredToken, TokenScores
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["AnswerScores", "likely_tokens"]


class AnswerScores:
    """Over the steps of one answer, whose text begins behind `offset` characters."""

    def __init__(self, tokenizer: Tokenizer, *, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = offset

    def add(self, logprobs: Sequence[TokenLogprobs]) -> tuple[TokenScores, ...]:
        """Of the answer's next tokens."""
        return tuple(self._scores(one) for one in logprobs)

    def add_prompt(self, first_id: int, logprobs: Sequence[TokenLogprobs]) -> tuple[TokenScores, ...]:
        """Of a prompt's first token, which nothing predicts, and of its others."""
        return (self._scored(self._token(first_id, None), first_id, ()), *self.add(logprobs))

    def _scores(self, one: TokenLogprobs) -> TokenScores:
        alternatives = tuple(self._token(token_id, logprob) for token_id, logprob in one.top)
        return self._scored(self._token(one.token_id, one.logprob), one.token_id, alternatives)

    def _scored(self, token: ScoredToken, token_id: int, alternatives: tuple[ScoredToken, ...]) -> TokenScores:
        scores = TokenScores(token, alternatives, self._offset)
        # A special token has a name, but is no text.
        if self._tokenizer.decode((token_id,)):
            self._offset += len(self._characters.decode(token.content))
        return scores

    def _token(self, token_id: int, logprob: float | None) -> ScoredToken:
        return ScoredToken(self._tokenizer.token_bytes(token_id), logprob)


def likely_tokens(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs], count: int
) -> tuple[tuple[LikelyToken, ...] | None, ...]:
    """Of a whole prompt: at each place its token, then the `count` likeliest; None at the first."""

    def at(one: TokenLogprobs) -> tuple[LikelyToken, ...]:
        top = [
            LikelyToken(token, tokenizer.token_bytes(token), logprob, rank)
            for rank, (token, logprob) in enumerate(one.top[:count], 1)
        ]
        rank = next((likely.rank for likely in top if likely.token_id == one.token_id), None)
        own = LikelyToken(one.token_id, tokenizer.token_bytes(one.token_id), one.logprob, rank)
        return (own, *(likely for likely in top if likely.token_id != one.token_id))

    return (None, *map(at, logprobs))
