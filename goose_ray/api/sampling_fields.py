"""The request fields that chat and text completions share, and what they mean for the engine.

Those of OpenAI and vLLM that we know and do not serve stand in `known_fields`; all others are refused as unrecognized.
"""

import math
import secrets
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from goose.policies.autoregressive import AutoregressivePolicy
from goose.speculator import AUTOMATIC_NODES
from goose_ray.api.calls import GenerateCall
from goose_ray.api.known_fields import KnownFields
from goose_ray.api.structured_fields import StructuredFields
from goose_ray.api.validation import WireModel
from goose_ray.engine.sampling_params import MAX_LOGPROBS, SamplingParams
from goose_ray.errors import InvalidRequestError

__all__ = ["MAX_SEQUENCES", "GooseOptions", "LogprobCount", "SamplingFields", "Seed", "StreamOptions"]

# Prompts times choices of one request.
MAX_SEQUENCES = 128
_MAX_STOP_TOKENS = 4096
# Each is compared with the end of the text before every token.
_MAX_BAD_WORDS = 1024
# of 64 bits
_MAX_ID_DIGITS = 19
# Where SamplingParams' own bounds do not reach: a seed must fit the 64 bits the random generator is keyed with.
_MIN_SEED, _MAX_SEED = -(2**63), 2**64 - 1
# How many alternatives a token may come with.
LogprobCount = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Seed = Annotated[int, Field(ge=_MIN_SEED, le=_MAX_SEED)]


_STOP_STRING: dict[str, Any] = {"type": "string", "minLength": 1}
_STOP: dict[str, Any] = {
    "anyOf": [_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": 16}, {"type": "null"}]
}
_TOKEN_ID_KEYS: dict[str, Any] = {"propertyNames": {"pattern": f"^(0|[1-9][0-9]{{0,{_MAX_ID_DIGITS - 1}}})$"}}
_Bias = Annotated[float, WithJsonSchema({"type": "number", "minimum": -100, "maximum": 100})]
_STREAMED: dict[str, Any] = {
    "anyOf": [
        {"properties": {"stream_options": {"type": "null"}}},
        {"properties": {"stream": {"const": True}}, "required": ["stream"]},
    ]
}


def _told(**schema: Any) -> Any:
    """An optional field, and what `SamplingParams` holds it to in the words of JSON Schema. Checks nothing."""
    return Field(default=None, json_schema_extra=schema)


class StreamOptions(WireModel):
    include_usage: bool | None = False
    # vLLM's: in every chunk, of what has come so far
    continuous_usage_stats: bool | None = False
    # OpenAI pads its chunks against traffic analysis; there is nothing to switch off here
    include_obfuscation: bool | None = None


class GooseOptions(WireModel):
    """Per-request choices that never change the output, only how it is drafted."""

    policy: str | None = Field(default=None, description="Tree policy; default: the deployment's.")
    budget: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=None,
        description="Nodes verified a step, anchor included; auto: in each step as many as give the most tokens a "
        f"second, or {AUTOMATIC_NODES} where the deployment's budget is a number; default: the deployment's.",
    )
    enabled: bool | None = Field(default=None, description="False: plain decoding, one token a step.")

    @field_validator("budget", mode="before")
    @classmethod
    def _nodes_or_auto(cls, value: Any) -> Any:
        if value in (None, "auto") or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        raise PydanticCustomError("budget", 'Input should be a number of nodes from 1 on or "auto"')

    @model_validator(mode="after")
    def _what_is_off_has_no_shape(self) -> Self:
        if self.enabled is False and self.policy not in (None, AutoregressivePolicy.name):
            says = "Without speculation there is no policy but autoregressive"
            raise PydanticCustomError("policy", "{says}", {"says": says, "at": "policy"})
        return self


class SamplingFields(StructuredFields, KnownFields):
    """Null means absent, as in OpenAI's API."""

    model_config = ConfigDict(json_schema_extra=_STREAMED)

    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = _told(minimum=0)
    temperature: float | None = _told(minimum=0, maximum=2)
    top_p: float | None = _told(exclusiveMinimum=0, maximum=1)
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    presence_penalty: float | None = _told(minimum=-2, maximum=2)
    frequency_penalty: float | None = _told(minimum=-2, maximum=2)
    logit_bias: dict[str, _Bias] | None = _told(**_TOKEN_ID_KEYS)
    seed: Seed | None = None
    stop: Annotated[tuple[str, ...], WithJsonSchema(_STOP)] = ()

    # vLLM's extensions
    top_k: int | None = _told(minimum=-1)
    min_p: float | None = _told(minimum=0, maximum=1)
    repetition_penalty: float | None = _told(minimum=0.01, maximum=100)
    min_tokens: int | None = _told(minimum=0)
    include_stop_str_in_output: bool | None = False
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, max_length=_MAX_STOP_TOKENS)] | None
    ) = None
    allowed_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, min_length=1)] | None = None
    bad_words: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True, max_length=_MAX_BAD_WORDS)] | None
    ) = None
    prompt_logprobs: LogprobCount | None = None
    ignore_eos: bool | None = False
    return_token_ids: bool | None = False
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: int | None = None

    # ours
    return_goose_stats: bool | None = False
    goose: GooseOptions | None = None

    # may be n alone
    best_of: int | None = _told(minimum=1)

    @field_validator("stop", mode="before")
    @classmethod
    def _stops_as_tuple(cls, value: Any) -> Any:
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return tuple(value)
        raise PydanticCustomError("stop_type", "Input should be a string or a list of strings")

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _biases_by_token_id(cls, value: Any) -> Any:
        for key, bias in value.items() if isinstance(value, dict) else ():
            # the spelling that JSON has for an integer, so that no id comes under two keys
            if not (key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS and str(int(key)) == key):
                raise PydanticCustomError("logit_bias_key", 'Keys should be token ids such as "42"')
            if not isinstance(bias, int | float) or isinstance(bias, bool) or not math.isfinite(bias):
                raise PydanticCustomError("logit_bias_value", "Biases should be finite numbers", {"at": key})
        return value

    @model_validator(mode="after")
    def _stream_options_are_for_streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            says = "They are for streams alone: send stream true, or leave them out"
            raise PydanticCustomError("stream_options", "{says}", {"says": says, "at": "stream_options"})
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Usage in every chunk: as in vLLM, only where it comes at the end too."""
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    @property
    def num_choices(self) -> int:
        """Of each prompt."""
        return 1 if self.n is None else self.n

    @property
    def policy(self) -> str | None:
        if self.goose is None:
            return None
        return AutoregressivePolicy.name if self.goose.enabled is False else self.goose.policy

    @property
    def budget(self) -> int | Literal["auto"] | None:
        return self.goose.budget if self.goose is not None else None

    def choices_of(self, call: GenerateCall) -> list[GenerateCall]:
        """One call a choice of one prompt. Choice i has the seed of the request plus i; without one, a random one."""
        if self.num_choices == 1:
            return [self._seeded(call, 0)]
        return [
            replace(self._seeded(call, choice), request_id=f"{call.request_id}-{choice}")
            for choice in range(self.num_choices)
        ]

    def _seeded(self, call: GenerateCall, choice: int) -> GenerateCall:
        """Drawn here, once: whoever has to run the call again gets the same text."""
        seed = secrets.randbits(63) if self.seed is None else self.seed + choice
        return replace(
            call,
            sampling=replace(call.sampling, seed=seed),
            bad_words=tuple(self.bad_words or ()),
            prompt_logprobs=self.prompt_logprobs,
        )

    def sampling_params(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Raises InvalidRequestError naming the field that is out of range. Seeds are `choices_of`'s business."""
        if self.best_of not in (None, self.num_choices):
            raise InvalidRequestError(
                f"best_of is not supported: choose among n choices yourself; with n = {self.num_choices} it may be "
                f"{self.num_choices}, not {self.best_of}",
                "best_of",
                "unsupported_parameter",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError("prompt_logprobs come with whole answers, not with streams", "prompt_logprobs")
        given: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "min_tokens": self.min_tokens,
        }
        return SamplingParams(
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logit_bias=tuple((int(token), bias) for token, bias in (self.logit_bias or {}).items()),
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            logprobs=logprobs,
            structured=self.structured,
            **{name: value for name, value in given.items() if value is not None},
        )
