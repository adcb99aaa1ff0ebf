"""Which requests an engine can serve at all, however long they wait. Knows no queue."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from goose_ray.engine.request import GenerationRequest
from goose_ray.errors import InvalidRequestError

__all__ = ["AdmissionRules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    policies: tuple[str, ...]
    vocab_size: int
    max_model_len: int
    num_slots: int

    @property
    def max_request_tokens(self) -> int:
        """Prompt and max_tokens of one request together."""
        return min(self.max_model_len, self.num_slots)

    def check(self, request: GenerationRequest) -> None:
        """Raises InvalidRequestError naming the field, the value and what would be right."""
        if request.policy is not None and request.policy not in self.policies:
            known = ", ".join(self.policies)
            raise InvalidRequestError(f"policy must be one of {known}, not {request.policy!r}", "policy")
        if not request.prompt_token_ids:
            raise InvalidRequestError("the prompt must hold at least one token", "prompt")
        self._check_length(len(request.prompt_token_ids), request.sampling.max_tokens)
        ids = np.asarray(request.prompt_token_ids)
        if ids.dtype.kind != "i" or ids.min() < 0 or ids.max() >= self.vocab_size:
            allowed = range(self.vocab_size)
            wrong = next(
                token for token in request.prompt_token_ids if not isinstance(token, int) or token not in allowed
            )
            raise InvalidRequestError(
                f"prompt token ids must be integers from 0 to {self.vocab_size - 1}, not {wrong!r}", "prompt"
            )
        self._check_vocabulary("logit_bias", (token for token, _ in request.sampling.logit_bias))
        self._check_vocabulary("stop_token_ids", request.sampling.stop_token_ids)
        self._check_vocabulary("committed_ids", request.committed_ids)
        if request.committed_ids and request.sampling.logprobs is not None:
            raise InvalidRequestError("committed_ids have no log-probabilities to tell", "committed_ids")
        self._check_vocabulary("allowed_token_ids", request.sampling.allowed_token_ids)
        for word in request.sampling.bad_word_ids:
            self._check_vocabulary("bad_words", word)

    def _check_vocabulary(self, field: str, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            if not 0 <= token < self.vocab_size:
                raise InvalidRequestError(
                    f"{field} must be token ids from 0 to {self.vocab_size - 1}, not {token}", field
                )

    def _check_length(self, num_prompt: int, max_tokens: int) -> None:
        if num_prompt + max_tokens <= self.max_request_tokens:
            return
        limit = (
            f"this model's maximum context length is {self.max_model_len} tokens"
            if self.max_model_len <= self.num_slots
            else f"this deployment's KV cache holds {self.num_slots} tokens"
        )
        raise InvalidRequestError(
            f"{limit}, but {num_prompt + max_tokens} were requested ({num_prompt} in the prompt, {max_tokens} for the "
            "completion)",
            code="context_length_exceeded",
        )
