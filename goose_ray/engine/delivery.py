"""From the tokens that the target chose to what the client gets: cut by the stop conditions, text and ids in step.

Text that may be the beginning of a stop string is held back, and the ids it came from with it, so that both are cut
at the same place. Knows nothing about where the tokens come from.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from goose_ray.engine.detokenizer import Detokenizer
from goose_ray.engine.logprobs import PathLogprobs, TokenLogprobs
from goose_ray.engine.request import FinishReason
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.stopping import StopRules, TokenCut, find_stop_string, held_back
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.errors import InvalidRequestError

__all__ = ["Delivery", "OutputStream"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one step's tokens came to."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    # how many of the step's tokens stay in the output; those behind the cut are dropped
    num_committed: int
    # tokens of earlier steps, never delivered, that belong to the stop string that ended the output
    num_withdrawn: int = 0
    # of the delivered tokens; None if they were not asked for
    logprobs: tuple[TokenLogprobs, ...] | None = None
    # with "abort": why, where it is the request's own doing
    error: InvalidRequestError | None = None


class OutputStream:
    """One request's output. Over a whole request the delivered ids are all its output tokens.

    A token is delivered with the first character of its text; the ids delivered are the fewest that give the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        eos_token_ids: Sequence[int],
        *,
        shown_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.rules = StopRules.of(sampling, eos_token_ids)
        self._stops = sampling.stop
        self._include_stop = sampling.include_stop_str_in_output
        self._min_tokens = sampling.min_tokens
        self._detokenizer = Detokenizer(tokenizer, shown_token_ids)
        self._num_committed = 0
        # Only with stop strings: text not delivered yet, and the tokens not delivered yet with the place in that
        # text where each one's own text ends. The first `_num_covered` characters are of a token delivered before.
        self._text = ""
        self._token_ids: list[int] = []
        self._ends: list[int] = []
        self._num_covered = 0
        # a stop string must end behind this many characters: what `min_tokens` protects
        self._protected = 0
        # of the tokens committed and not delivered yet
        self._logprobs: list[TokenLogprobs] = []

    def push(
        self, token_ids: Sequence[int], logprobs: PathLogprobs | None = None, *, is_complete: bool = False
    ) -> Delivery:
        """Takes a step's tokens, in order, of which the last ends the output if it `is_complete`; not to be called
        again after a delivery with a finish reason.
        """
        cut = self.rules.cut(token_ids, self._num_committed, is_complete=is_complete)
        delivery = self._push_with_stops(token_ids, cut) if self._stops else self._push(token_ids, cut)
        self._num_committed += delivery.num_committed
        if logprobs is None:
            return delivery
        self._logprobs += logprobs.of_tokens()
        num_delivered = len(delivery.token_ids)
        delivered, self._logprobs = self._logprobs[:num_delivered], self._logprobs[num_delivered:]
        return replace(delivery, logprobs=tuple(delivered))

    def _push(self, token_ids: Sequence[int], cut: TokenCut) -> Delivery:
        text = self._detokenizer.feed(token_ids[: cut.num_text])
        if cut.finish_reason:
            text += self._detokenizer.flush()
        kept = tuple(token_ids[: cut.num_kept])
        return Delivery(text, kept, cut.finish_reason, cut.stop_token_id, cut.num_kept)

    def _push_with_stops(self, token_ids: Sequence[int], cut: TokenCut) -> Delivery:
        num_held = len(self._token_ids)
        for number, token in enumerate(token_ids[: cut.num_text], self._num_committed + 1):
            new = self._detokenizer.feed((token,))
            self._text += new
            self._token_ids.append(token)
            self._ends.append(len(self._text))
            if number <= self._min_tokens:
                self._protected = len(self._text)
            elif new and (stopped := self._stopped(num_held)):
                return stopped
        if cut.finish_reason:
            new = self._detokenizer.flush()
            self._text += new
            if new and self._ends and self._num_committed + cut.num_text > self._min_tokens:
                # What no token completed is text of the last one.
                self._ends[-1] = len(self._text)
                if stopped := self._stopped(num_held):
                    return stopped
            text = self._text
            ids = (*self._token_ids, *token_ids[cut.num_text : cut.num_kept])
        else:
            text, ids = self._take(len(self._text) - held_back(self._text, self._stops))
        return Delivery(text, ids, cut.finish_reason, cut.stop_token_id, cut.num_kept)

    def _stopped(self, num_held: int) -> Delivery | None:
        """The end, if a stop string is complete; `num_held` of the tokens not delivered are of earlier steps."""
        match = find_stop_string(self._text, self._stops, after=self._protected)
        if match is None:
            return None
        text, ids = self._take(match.end if self._include_stop else match.start)
        return Delivery(
            text, ids, "stop", match.stop, max(0, len(ids) - num_held), num_withdrawn=max(0, num_held - len(ids))
        )

    def _take(self, num_characters: int) -> tuple[str, tuple[int, ...]]:
        """Removes the first `num_characters` of the held text, and the fewest tokens that give them."""
        count = 0 if num_characters <= self._num_covered else bisect_left(self._ends, num_characters) + 1
        covered = self._ends[count - 1] if count else self._num_covered
        text, ids = self._text[:num_characters], tuple(self._token_ids[:count])
        self._text = self._text[num_characters:]
        self._num_covered = max(0, covered - num_characters)
        self._protected = max(0, self._protected - num_characters)
        del self._token_ids[:count]
        self._ends = [end - num_characters for end in self._ends[count:]]
        return text, ids
