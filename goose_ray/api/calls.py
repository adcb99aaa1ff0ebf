"""What passes between the HTTP ingress and a replica: plain data, cheap to pickle.

The ingress has checked the shape of a request; the replica alone knows the tokenizer and the context length. Errors
cross as data too: an exception raised across Ray is wrapped, logged with a traceback and costs more than a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from goose_ray.api.tools.choice import ToolChoiceKind
from goose_ray.engine.request import FinishReason, SpeculationStats
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import GooseRayError

__all__ = [
    "AnswerEnd",
    "ChatPrompt",
    "DecodeCall",
    "Delta",
    "EncodeCall",
    "Encoded",
    "Failure",
    "GenerateCall",
    "LikelyToken",
    "PromptInfo",
    "ScoredToken",
    "TokenScores",
    "ToolCallDelta",
]

AnswerEnd = FinishReason | Literal["tool_calls"]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template: mappings of `role` and `content`, and what templates know of calls."""

    messages: tuple[Mapping[str, Any], ...]
    # definitions of functions, as OpenAI has them
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoiceKind = "none"
    # variables of the model's own chat template
    template_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """One sequence to generate. `prompt` is a conversation, a text, or token ids."""

    request_id: str
    prompt: ChatPrompt | str | tuple[int, ...]
    sampling: SamplingParams
    # the beginning of the answer, from a replica that was lost: it goes on behind it, and the first delta repeats it
    committed_ids: tuple[int, ...] = ()
    # true: the client named no limit, so `sampling.max_tokens` is cut to what the context still holds
    clip_max_tokens: bool
    # the request field that `sampling.max_tokens` came in
    max_tokens_param: str = "max_tokens"
    policy: str | None = None
    # nodes verified a step, anchor included; auto: as a deployment's `auto`; None: the deployment's
    budget: int | Literal["auto"] | None = None
    cache_salt: str | None = None
    # lower comes first
    priority: int = 0
    return_prompt_token_ids: bool = False
    # texts that must not come up in the answer
    bad_words: tuple[str, ...] = ()
    # how many alternatives to tell with the log-probability of each prompt token; None: no log-probabilities
    prompt_logprobs: int | None = None
    # the answer begins with the prompt's text
    echo: bool = False
    # and ends with it: the one token that the engine generates is not told
    is_prompt_only: bool = False
    # false: what the model thinks before it answers is counted, and not told
    tells_reasoning: bool = True
    # the actor that reads the answer: its death ends the call; None: nobody looks
    caller: str | None = None
    # W3C headers of the trace that it is part of; None: it is not traced
    trace: Mapping[str, str] | None = None

    @property
    def prompt_param(self) -> str:
        """The request field that the prompt came in."""
        return "messages" if isinstance(self.prompt, ChatPrompt) else "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeCall:
    """A prompt to be told the tokens of. `add_special_tokens` is for texts: templates write their own."""

    prompt: ChatPrompt | str
    add_special_tokens: bool = True
    # each token's text too
    with_strings: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    token_ids: tuple[int, ...]
    max_model_len: int
    # one a token; None if they were not asked for
    strings: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """Tokens to be told the text of, special ones by their names."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token by what it stands for: parts of a character too, and the names of special tokens."""

    content: bytes
    # None: nothing predicts the first token of a prompt
    logprob: float | None


@dataclass(frozen=True, slots=True)
class TokenScores:
    """One token of an answer. `offset` is where its text begins in the answer's, in characters."""

    token: ScoredToken
    # likeliest first
    alternatives: tuple[ScoredToken, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token at a place of the prompt. `rank` counts from 1; None: below the alternatives that were asked for."""

    token_id: int
    content: bytes
    logprob: float
    rank: int | None


@dataclass(frozen=True, slots=True)
class PromptInfo:
    """The prompt as the model saw it. `token_ids` only if they were asked for."""

    num_tokens: int
    token_ids: tuple[int, ...] | None = None
    # how many of its tokens were in the prefix cache
    num_cached: int = 0
    # what the answer begins with, and its tokens' scores; None if not asked for
    text: str | None = None
    scores: tuple[TokenScores, ...] | None = None
    # at each of its tokens the token itself, then the likeliest there; None at the first, which nothing predicts
    likely: tuple[tuple[LikelyToken, ...] | None, ...] | None = None
    # how tool calls are written in the answer's text; None: there are none, or a schema says how
    tool_format: str | None = None
    # what the model thinks before it answers is told apart from the answer
    tells_reasoning: bool = False
    # which model saw it
    model_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of call `index` of an answer. The first one of a call has its id and name; arguments are to be joined."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step added. The first one of a call carries `prompt`, the last one `finish_reason` and `stats`.

    Replicas know of no tool calls: `goose_ray.api.tools.reader` takes them out of the text.
    """

    text: str
    token_ids: tuple[int, ...]
    # what the model thinks before it answers; not part of the text
    reasoning: str = ""
    # of all tokens of the answer so far; None: nobody looks for thinking in it
    num_reasoning_tokens: int | None = None
    prompt: PromptInfo | None = None
    finish_reason: AnswerEnd | None = None
    stop_reason: str | int | None = None
    stats: SpeculationStats | None = None
    # one a token; None if they were not asked for
    scores: tuple[TokenScores, ...] | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    # the text and the calls in the order in which they were written; empty where nobody looks for calls
    parts: tuple[str | ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Ends a call in place of the last `Delta`."""

    error: GooseRayError
