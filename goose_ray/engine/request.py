"""A request as the engine sees it, and what the engine gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError

__all__ = ["FinishReason", "GenerationRequest", "RequestOutput", "SourceStats", "SpeculationStats"]

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One sequence to generate. `policy` or `budget` None means the deployment's."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    # what another engine has generated of the output: it goes on behind these, and the first output repeats them; not
    # with log-probabilities
    committed_ids: tuple[int, ...] = ()
    policy: str | None = None
    # nodes verified a step, anchor included
    budget: int | None = None
    cache_salt: str | None = None
    # lower comes first
    priority: int = 0
    # special tokens that are part of the output's text
    shown_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Draft tokens of one source at reached nodes, and how many of them were committed."""

    attempted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """Counts of one request so far. `drafted` counts verified draft nodes, `accepted` committed ones."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    by_source: Mapping[str, SourceStats] = field(default_factory=dict)

    @property
    def tau(self) -> float:
        """Mean acceptance length: committed tokens / steps, bonus included; 0 before the first step."""
        return self.committed / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What one step added to a request. Concatenating `text` over all outputs gives the whole text.

    `token_ids` are the delivered tokens of the step; those of a trimmed stop string are delivered
    (they were generated) only if they come before the cut.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    # the stop string or stop token id that ended it, if one did
    stop_reason: str | int | None
    stats: SpeculationStats
    # one a token of `token_ids`; None if they were not asked for
    logprobs: tuple[TokenLogprobs, ...] | None = None
    # of all prompt tokens but the first; with the first output of a request that asks for them
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    # with "abort": why, where it is the request's own doing
    error: InvalidRequestError | None = None
    # prompt tokens that were in the prefix cache when the request was admitted
    num_cached_tokens: int
    # seconds from its arrival until then
    queued_s: float = 0.0
