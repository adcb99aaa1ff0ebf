"""What one sequence changes in the target's logits before a token is chosen: the data, kept up to date as it grows.

Sparse: the cost of a token is that of the distinct tokens seen, never of the vocabulary. Knows ids, counts and
biases; the arithmetic is the runner's (`goose_ray.runner.processing`).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from goose.tree import FloatArray, IntArray
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError

__all__ = ["LogitRules"]


class LogitRules:
    """Mutable, owned by the sequence; a step's runner reads it before the sequence commits."""

    __slots__ = ("_tail", "allowed_ids", "banned_ids", "bias_ids", "biases", "counted_ids", "counts", "sampling")

    sampling: SamplingParams
    # [a] int64: the only tokens to be chosen; empty: all may be
    allowed_ids: IntArray
    # [b] int64, distinct, and [b] float32: what is added to the logits of these tokens
    bias_ids: IntArray
    biases: FloatArray
    # [k] int64: not to be chosen at output positions below `sampling.min_tokens`
    banned_ids: IntArray
    # [m] int64, ascending: the tokens that penalties look at, in the output or, for the repetition penalty, the prompt
    counted_ids: IntArray
    # [m] int64: how often each stands in the output
    counts: IntArray

    def __init__(
        self, sampling: SamplingParams, *, prompt_ids: ArrayLike, end_ids: Iterable[int], vocab_size: int
    ) -> None:
        """`end_ids` are the tokens that end an output; those outside the vocabulary never come up. Raises
        InvalidRequestError if the other rules ban all of the allowed tokens: nothing could be chosen.
        """
        self.sampling = sampling
        self.allowed_ids = np.unique(np.asarray(sampling.allowed_token_ids, dtype=np.int64))
        # the last output tokens: as many as a bad word may begin with
        self._tail: tuple[int, ...] = ()
        self.bias_ids = np.asarray([token for token, _ in sampling.logit_bias], dtype=np.int64)
        self.biases = np.asarray([bias for _, bias in sampling.logit_bias], dtype=np.float32)
        banned = sorted(token for token in set(end_ids) if 0 <= token < vocab_size) if sampling.min_tokens else []
        self.banned_ids = np.asarray(banned, dtype=np.int64)
        self._check_some_are_left()
        in_prompt: ArrayLike = prompt_ids if sampling.repetition_penalty != 1.0 else ()
        self.counted_ids = np.unique(np.asarray(in_prompt, dtype=np.int64))
        self.counts = np.zeros(len(self.counted_ids), dtype=np.int64)

    @classmethod
    def of(cls, request: GenerationRequest, end_ids: Iterable[int], vocab_size: int) -> "LogitRules | None":
        """None if the request asks for nothing of the kind."""
        if not request.sampling.has_logit_rules:
            return None
        return cls(request.sampling, prompt_ids=request.prompt_token_ids, end_ids=end_ids, vocab_size=vocab_size)

    def _check_some_are_left(self) -> None:
        """Of the allowed tokens at the output's first position, where bans are the most."""
        banned = np.union1d(self.banned_ids, self.completing(()))
        if len(self.allowed_ids) and np.isin(self.allowed_ids, banned).all():
            some, more = self.allowed_ids[:8].tolist(), " …" if len(self.allowed_ids) > 8 else ""
            raise InvalidRequestError(
                f"allowed_token_ids must leave a token that neither bad_words nor min_tokens (no token that ends the "
                f"answer) rules out, not {some}{more}",
                "allowed_token_ids",
            )

    def apply_from(self, position: int) -> bool:
        """Whether they change anything at this output position or a later one."""
        sampling = self.sampling
        always = sampling.has_penalties or sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_word_ids
        return bool(always) or self.bans_at(position)

    def bans_at(self, position: int) -> bool:
        return position < self.sampling.min_tokens and len(self.banned_ids) > 0

    def completing(self, path_ids: Sequence[int]) -> IntArray:
        """[w] int64, distinct: tokens that would complete a bad word behind the output and these tokens."""
        before = (*self._tail, *path_ids)
        last = {
            word[-1]
            for word in self.sampling.bad_word_ids
            if len(word) - 1 <= len(before) and before[len(before) - len(word) + 1 :] == word[:-1]
        }
        return np.asarray(sorted(last), dtype=np.int64)

    def num_kept(self, token_ids: Sequence[int], position: int) -> int:
        """How many of the tokens chosen from this output position on are ones that could be: one that is ruled out was
        drawn from nothing, as all of them were.
        """
        if not self.fields_at(position):
            return len(token_ids)
        for index, token in enumerate(token_ids):
            if (
                (len(self.allowed_ids) and token not in self.allowed_ids)
                or (self.bans_at(position + index) and token in self.banned_ids)
                or token in self.completing(token_ids[:index])
            ):
                return index
        return len(token_ids)

    def fields_at(self, position: int) -> list[str]:
        """Of the request, those that rule tokens out at this output position."""
        ruling = {
            "allowed_token_ids": len(self.allowed_ids) > 0,
            "bad_words": len(self.sampling.bad_word_ids) > 0,
            "min_tokens": self.bans_at(position),
        }
        return [field for field, rules_out in ruling.items() if rules_out]

    def commit(self, token_ids: Sequence[int] | IntArray) -> None:
        """The output's next tokens, in order."""
        if self.sampling.bad_word_ids:
            longest = max(map(len, self.sampling.bad_word_ids)) - 1
            tail = (*self._tail, *(int(token) for token in token_ids))
            self._tail = tail[len(tail) - min(longest, len(tail)) :]
        if self.sampling.has_penalties:
            self.counted_ids, self.counts = self.counted_with(token_ids)

    def counted_with(self, token_ids: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
        """`counted_ids` and `counts` as they would be with these output tokens too. Changes nothing."""
        if not len(token_ids):
            return self.counted_ids, self.counts
        ids, more = np.unique(np.asarray(token_ids, dtype=np.int64), return_counts=True)
        places = np.searchsorted(self.counted_ids, ids)
        known = np.zeros(len(ids), dtype=np.bool_)
        inside = places < len(self.counted_ids)
        known[inside] = self.counted_ids[places[inside]] == ids[inside]
        counts = self.counts.copy()
        counts[places[known]] += more[known]
        new = places[~known]
        return np.insert(self.counted_ids, new, ids[~known]), np.insert(counts, new, more[~known])
