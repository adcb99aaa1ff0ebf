"""What a request asks of sampling and stopping. Plain, validated data."""

from dataclasses import dataclass

from goose_ray.engine.structured import StructuredOutput
from goose_ray.errors import InvalidRequestError

__all__ = ["MAX_LOGPROBS", "SamplingParams"]

MAX_LOGPROBS = 20
_MAX_STOP_STRINGS = 16
# Arrays hold 64-bit integers; JSON holds larger ones.
_MAX_INT = 2**63 - 1
# Below this, logits divided by the temperature leave float32's range, and long before that the likeliest token is
# drawn with certainty.
_MIN_SAMPLED_TEMPERATURE = 1e-5
_MAX_PENALTY = 2.0
# Nobody asks for more, and far beyond it products leave float32's range.
_MIN_REPETITION_PENALTY, _MAX_REPETITION_PENALTY = 0.01, 100.0
_MAX_LOGIT_BIAS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Raises InvalidRequestError naming the field if a value is out of range.

    temperature 0, or as good as 0, is greedy. `seed` None draws a seed when the request is made, so that every request
    has one and a re-run of it (preemption, failover) gives the same text. Output position t is drawn with a generator
    keyed by (seed, t).

    Logits are processed in vLLM's order: allowed tokens, bad words, min_tokens, logit_bias, repetition, frequency and
    presence penalty; then, when sampled, temperature, min_p, top_k, top_p.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    # 0 or -1: no limit
    top_k: int = 0
    # tokens less likely than this share of the likeliest one's probability are out
    min_p: float = 0.0
    # of tokens in prompt or output, positive logits are divided by it and negative ones multiplied
    repetition_penalty: float = 1.0
    # taken off the logit of a token for each time it stands in the output
    frequency_penalty: float = 0.0
    # taken off the logit of a token that stands in the output
    presence_penalty: float = 0.0
    # (token id, what is added to its logit)
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    # token ids that end the output; the end-of-sequence ids of the model are added by the engine
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    # no token ends the output before it has as many, and no stop string that is complete by then
    min_tokens: int = 0
    # the stop string that ended the output, or the text of the stop token, is part of it
    include_stop_str_in_output: bool = False
    # how many alternatives to report with the log-probability of each token; None: no log-probabilities
    logprobs: int | None = None
    # the same of each prompt token but the first
    prompt_logprobs: int | None = None
    # tokens that alone may be chosen; empty: all
    allowed_token_ids: tuple[int, ...] = ()
    # sequences of tokens that do not come up in the output: whatever would complete one is not chosen
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    # what the output must be; None: anything
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, not {self.max_tokens}", "max_tokens")
        if not 0.0 <= self.temperature <= 2.0:
            raise InvalidRequestError(f"temperature must be between 0 and 2, not {self.temperature}", "temperature")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, not {self.top_p}", "top_p")
        if self.top_k < -1:
            raise InvalidRequestError(f"top_k must be -1 or 0 (no limit) or positive, not {self.top_k}", "top_k")
        if not 0.0 <= self.min_p <= 1.0:
            raise InvalidRequestError(f"min_p must be between 0 and 1, not {self.min_p}", "min_p")
        self._check_penalties()
        self._check_lengths()
        for name, largest in (
            ("max_tokens", self.max_tokens),
            ("top_k", self.top_k),
            ("stop_token_ids", max(self.stop_token_ids, default=0)),
            ("allowed_token_ids", max(self.allowed_token_ids, default=0)),
        ):
            if largest > _MAX_INT:
                raise InvalidRequestError(f"{name} must not be above {_MAX_INT}, not {largest}", name)
        if len(self.stop) > _MAX_STOP_STRINGS:
            raise InvalidRequestError(f"stop takes at most {_MAX_STOP_STRINGS} strings, not {len(self.stop)}", "stop")
        if any(not word for word in self.bad_word_ids):
            raise InvalidRequestError("bad_words must not be empty", "bad_words")
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop strings must not be empty", "stop")

    def _check_penalties(self) -> None:
        for name in ("frequency_penalty", "presence_penalty"):
            if not -_MAX_PENALTY <= getattr(self, name) <= _MAX_PENALTY:
                raise InvalidRequestError(
                    f"{name} must be between {-_MAX_PENALTY:g} and {_MAX_PENALTY:g}, not {getattr(self, name)}", name
                )
        if not _MIN_REPETITION_PENALTY <= self.repetition_penalty <= _MAX_REPETITION_PENALTY:
            raise InvalidRequestError(
                f"repetition_penalty must be between {_MIN_REPETITION_PENALTY:g} and {_MAX_REPETITION_PENALTY:g}, "
                f"not {self.repetition_penalty}",
                "repetition_penalty",
            )
        for token, bias in self.logit_bias:
            # the vocabulary is the engine's to know
            if not 0 <= token <= _MAX_INT:
                raise InvalidRequestError(f"logit_bias: {token} is no token id", "logit_bias")
            if not -_MAX_LOGIT_BIAS <= bias <= _MAX_LOGIT_BIAS:
                raise InvalidRequestError(
                    f"logit_bias of token {token} must be between {-_MAX_LOGIT_BIAS:g} and {_MAX_LOGIT_BIAS:g}, "
                    f"not {bias}",
                    "logit_bias",
                )
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidRequestError("logit_bias must name each token id once", "logit_bias")

    def _check_lengths(self) -> None:
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), not {self.min_tokens}", "min_tokens"
            )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise InvalidRequestError(f"{name} must be between 0 and {MAX_LOGPROBS}, not {count}", name)

    @property
    def greedy(self) -> bool:
        return self.temperature < _MIN_SAMPLED_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    @property
    def has_logit_rules(self) -> bool:
        """Whether the choice of a token depends on more than the target's logits and the tokens' noise."""
        return (
            self.has_penalties
            or self.min_tokens > 0
            or bool(self.logit_bias or self.allowed_token_ids or self.bad_word_ids)
        )
