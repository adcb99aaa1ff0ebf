"""Where an output ends: pure functions over token ids and text.

A step may bring several tokens at once. Every rule here gives what one token at a time would have given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from goose_ray.engine.request import FinishReason
from goose_ray.engine.sampling_params import SamplingParams

__all__ = ["StopMatch", "StopRules", "TokenCut", "find_stop_string", "held_back"]


@dataclass(frozen=True, slots=True)
class TokenCut:
    """The first `num_kept` tokens are the output's; the first `num_text` of them are text.

    A stop token is text only if that was asked for.
    """

    num_kept: int
    num_text: int
    finish_reason: FinishReason | None
    # the stop token id that ended it; None for an end-of-sequence token, which every output may end with
    stop_token_id: int | None


@dataclass(frozen=True, slots=True)
class StopRules:
    """The conditions of one request that depend on token ids and their count alone."""

    # empty if the request ignores them
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    max_tokens: int
    # what `min_tokens` bans: end-of-sequence ids too where they are ignored, as in vLLM
    end_token_ids: frozenset[int]
    # a stop token's text is part of the output's text
    include_stop: bool = False

    @classmethod
    def of(cls, sampling: SamplingParams, eos_token_ids: Sequence[int]) -> "StopRules":
        return cls(
            eos_token_ids=frozenset() if sampling.ignore_eos else frozenset(eos_token_ids),
            stop_token_ids=frozenset(sampling.stop_token_ids),
            max_tokens=sampling.max_tokens,
            end_token_ids=frozenset(eos_token_ids) | frozenset(sampling.stop_token_ids),
            include_stop=sampling.include_stop_str_in_output,
        )

    @property
    def all_token_ids(self) -> frozenset[int]:
        """Every token id that ends the output: a draft need not run past one."""
        return self.eos_token_ids | self.stop_token_ids

    def cut(self, token_ids: Sequence[int], num_before: int, *, is_complete: bool = False) -> TokenCut:
        """Cuts the tokens of a step after the first that ends the output; `num_before` is the output's length so far,
        `is_complete` says that the last of them ends it whatever it is.

        A stop token wins over max_tokens on the same token, and so does the end of the output.
        """
        room = self.max_tokens - num_before
        for index, token in enumerate(token_ids[:room]):
            if token in self.eos_token_ids:
                return TokenCut(index + 1, index + self.include_stop, "stop", None)
            if token in self.stop_token_ids:
                return TokenCut(index + 1, index + self.include_stop, "stop", token)
        if is_complete and len(token_ids) <= room:
            return TokenCut(len(token_ids), len(token_ids), "stop", None)
        if len(token_ids) >= room:
            return TokenCut(room, room, "length", None)
        return TokenCut(len(token_ids), len(token_ids), None, None)


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`text[start:end] == stop`."""

    start: int
    end: int
    stop: str


def find_stop_string(text: str, stops: Sequence[str], *, after: int = 0) -> StopMatch | None:
    """The stop string that is complete first, behind the first `after` characters; of those complete at the same
    character, the longest.

    First complete, not first begun: that is what a reader of one character at a time would stop at, so the result
    does not depend on how many characters arrive together.
    """
    matches = [
        StopMatch(start, start + len(stop), stop)
        for stop in stops
        if (start := text.find(stop, max(0, after - len(stop) + 1))) >= 0
    ]
    return min(matches, key=lambda match: (match.end, match.start), default=None)


def held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that may be the beginning of a stop string; 0 if none may."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
