"""Wire model of `POST /v1/completions`: what it accepts and the calls it becomes, one a prompt and choice."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from goose_ray.api.calls import GenerateCall
from goose_ray.api.sampling_fields import MAX_SEQUENCES, LogprobCount, SamplingFields
from goose_ray.api.validation import only_neutral
from goose_ray.errors import InvalidRequestError

__all__ = ["CompletionRequest"]

Prompt = str | tuple[int, ...]
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_TOKENS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_SEVERAL: dict[str, Any] = {
    "type": "array",
    "items": {"anyOf": [_TEXT, _TOKENS]},
    "minItems": 1,
    "maxItems": MAX_SEQUENCES,
}
_PROMPTS: dict[str, Any] = {"anyOf": [_TEXT, _TOKENS, _SEVERAL]}


class CompletionRequest(SamplingFields):
    """`prompt` is a text, token ids, or a list of either; each prompt is answered by `n` choices, in order."""

    prompt: Annotated[tuple[Prompt, ...], WithJsonSchema(_PROMPTS)]
    logprobs: LogprobCount | None = None
    echo: bool | None = False

    # refused unless neutral
    suffix: Annotated[str | None, only_neutral("")] = None
    add_special_tokens: Annotated[bool | None, only_neutral(True)] = None
    prompt_embeds: Annotated[Any, only_neutral()] = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts_as_tuple(cls, value: Any) -> tuple[Prompt, ...]:
        prompts = value if isinstance(value, list) and value and not _is_token_ids(value) else [value]
        if len(prompts) > MAX_SEQUENCES:
            raise PydanticCustomError("too_many", "There should be at most {limit} prompts", {"limit": MAX_SEQUENCES})
        return tuple(_one_prompt(prompt) for prompt in prompts)

    def to_calls(self, request_id: str) -> list[GenerateCall]:
        """One call a choice, those of a prompt together. Raises InvalidRequestError naming the field out of range."""
        # The prompt alone is asked for; the engine's one token more is left out of the answer.
        is_prompt_only = bool(self.echo) and self.max_tokens == 0
        sampling = self.sampling_params(max_tokens=1 if is_prompt_only else self.max_tokens, logprobs=self.logprobs)
        if self.echo:
            sampling = replace(sampling, prompt_logprobs=self.logprobs)
        if len(self.prompt) * self.num_choices > MAX_SEQUENCES:
            raise InvalidRequestError(
                f"{len(self.prompt)} prompts with n = {self.num_choices} are more than {MAX_SEQUENCES} choices", "n"
            )
        calls = [
            GenerateCall(
                request_id=f"{request_id}-{index}",
                prompt=prompt,
                sampling=sampling,
                clip_max_tokens=self.max_tokens is None,
                policy=self.policy,
                budget=self.budget,
                cache_salt=self.cache_salt,
                priority=self.priority or 0,
                return_prompt_token_ids=bool(self.return_token_ids),
                echo=bool(self.echo),
                is_prompt_only=is_prompt_only,
            )
            for index, prompt in enumerate(self.prompt)
        ]
        return [choice for call in calls for choice in self.choices_of(call)]


def _is_token_ids(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)


def _one_prompt(value: Any) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and _is_token_ids(value):
        if min(value) < 0:
            raise PydanticCustomError("token_id", "Token ids should not be negative")
        return tuple(value)
    raise PydanticCustomError(
        "prompt_type", "Input should be a non-empty string, a non-empty list of token ids, or a list of those"
    )
