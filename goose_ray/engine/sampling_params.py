"""What a request asks of sampling and stopping. Plain, validated data."""

from dataclasses import dataclass

from goose_ray.errors import InvalidRequestError

__all__ = ["SamplingParams"]

_MAX_STOP_STRINGS = 16
# Arrays hold 64-bit integers; JSON holds larger ones.
_MAX_INT = 2**63 - 1
# Below this, logits divided by the temperature leave float32's range, and long before that the likeliest token is
# drawn with certainty.
_MIN_SAMPLED_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Raises InvalidRequestError naming the field if a value is out of range.

    temperature 0, or as good as 0, is greedy. `seed` None draws a seed when the request is made, so that every request
    has one and a re-run of it (preemption, failover) gives the same text. Output position t is drawn with a generator
    keyed by (seed, t).
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    # 0 or -1: no limit
    top_k: int = 0
    seed: int = 0
    # token ids that end the output; the end-of-sequence ids of the model are added by the engine
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, not {self.max_tokens}", "max_tokens")
        if not 0.0 <= self.temperature <= 2.0:
            raise InvalidRequestError(f"temperature must be between 0 and 2, not {self.temperature}", "temperature")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, not {self.top_p}", "top_p")
        if self.top_k < -1:
            raise InvalidRequestError(f"top_k must be -1 or 0 (no limit) or positive, not {self.top_k}", "top_k")
        for name, largest in (
            ("max_tokens", self.max_tokens),
            ("top_k", self.top_k),
            ("stop_token_ids", max(self.stop_token_ids, default=0)),
        ):
            if largest > _MAX_INT:
                raise InvalidRequestError(f"{name} must not be above {_MAX_INT}", name)
        if len(self.stop) > _MAX_STOP_STRINGS:
            raise InvalidRequestError(f"stop takes at most {_MAX_STOP_STRINGS} strings, not {len(self.stop)}", "stop")
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop strings must not be empty", "stop")

    @property
    def greedy(self) -> bool:
        return self.temperature < _MIN_SAMPLED_TEMPERATURE
