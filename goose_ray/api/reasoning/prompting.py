"""Which answers may begin with thinking, and where it has begun: by the model's chat template and each prompt's end.

Templates open the thinking for the model (DeepSeek's newer ones, Qwen's thinking ones), close it at once
(`enable_thinking: false`), or leave it to the model. Knows them by the marks alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from goose_ray.api.calls import GenerateCall
from goose_ray.api.reasoning.parser import BEGIN, END, SPACE
from goose_ray.api.reasoning.reader import ReasoningReader
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.structured import Preface
from goose_ray.engine.tokenizer import Tokenizer

__all__ = ["ReasoningPlace", "ReasoningPrompts"]

# More tokens than a mark and the white space around it are.
_TAIL = 16


class ReasoningPlace:
    """Of one answer that may begin with thinking, or begins inside it."""

    def __init__(self, tokenizer: Tokenizer, mark_ids: frozenset[int], *, is_begun: bool) -> None:
        self._tokenizer = tokenizer
        self._is_begun = is_begun
        # text in the answer even if they are special tokens
        self.shown_token_ids = mark_ids

    def reader(self, *, told: bool) -> ReasoningReader:
        return ReasoningReader(self._tokenizer, self.shown_token_ids, is_begun=self._is_begun, told=told)

    def behind(self, sampling: SamplingParams) -> SamplingParams:
        """With the shape of the answer, if it is to have one, behind the thinking."""
        if sampling.structured is None:
            return sampling
        preface = Preface("" if self._is_begun else BEGIN, END)
        return replace(sampling, structured=replace(sampling.structured, preface=preface))


class ReasoningPrompts:
    """`setting` is the configuration's `reasoning_parser`."""

    def __init__(self, tokenizer: Tokenizer, setting: str) -> None:
        self._tokenizer = tokenizer
        self._thinks = END in tokenizer.chat_template if setting == "auto" else setting != "none"
        # of its own accord, without a mark
        self._begins_inside = setting == "deepseek_r1"
        ids = map(tokenizer.special_token_id, (BEGIN, END))
        self._mark_ids = frozenset(token_id for token_id in ids if token_id is not None)

    def place(self, call: GenerateCall, token_ids: Sequence[int]) -> ReasoningPlace | None:
        """None for answers without thinking. `token_ids` are the prompt's."""
        if not self._thinks or call.prompt_param != "messages":
            return None
        end = self._tokenizer.decode(token_ids[-_TAIL:], frozenset(token_ids[-_TAIL:])).rstrip(SPACE)
        if end.endswith(END):
            return None
        is_begun = self._begins_inside or end.endswith(BEGIN)
        return ReasoningPlace(self._tokenizer, self._mark_ids, is_begun=is_begun)
