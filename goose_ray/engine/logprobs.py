"""Log-probabilities of chosen tokens, as a step brings them and as a client gets them, one a token."""

from dataclasses import dataclass

from goose.tree import FloatArray, IntArray

__all__ = ["PathLogprobs", "TokenLogprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of the model's own logits, before anything that the request asks for changes them."""

    token_id: int
    logprob: float
    # (token id, log-probability) of the likeliest tokens, likeliest first; the chosen one may be among them
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class PathLogprobs:
    """The same along one verified path of n tokens, with k alternatives each."""

    # [n] int64
    token_ids: IntArray
    # [n] float32
    chosen: FloatArray
    # [n, k] int64
    top_ids: IntArray
    # [n, k] float32
    top: FloatArray

    def of_tokens(self) -> list[TokenLogprobs]:
        columns = (self.token_ids, self.chosen, self.top_ids, self.top)
        return [
            TokenLogprobs(token, logprob, tuple(zip(top_ids, top, strict=True)))
            for token, logprob, top_ids, top in zip(*(column.tolist() for column in columns), strict=True)
        ]
