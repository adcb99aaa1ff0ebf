"""Log-probabilities in the shapes of the two endpoints."""

from collections.abc import Sequence

from goose_ray.api.calls import LikelyToken, ScoredToken, TokenScores
from goose_ray.api.reply import Reply

__all__ = ["ChatLogprobs", "ChatToken", "CompletionLogprobs", "PromptLogprob", "prompt_logprobs"]

# JSON has no infinity; what is less likely is as good as impossible. vLLM says the same.
_LEAST = -9999.0


class _Alternative(Reply):
    token: str
    logprob: float | None
    bytes: list[int]

    @classmethod
    def of(cls, token: ScoredToken) -> "_Alternative":
        return cls(
            token=token.content.decode(errors="replace"), logprob=_finite(token.logprob), bytes=list(token.content)
        )


class ChatToken(_Alternative):
    top_logprobs: list[_Alternative]


class ChatLogprobs(Reply):
    content: list[ChatToken]

    @classmethod
    def of(cls, scores: Sequence[TokenScores]) -> "ChatLogprobs":
        return cls(
            content=[
                ChatToken(
                    **_Alternative.of(one.token).model_dump(),
                    top_logprobs=[_Alternative.of(alternative) for alternative in one.alternatives],
                )
                for one in scores
            ]
        )


class CompletionLogprobs(Reply):
    """One entry a token in each list. `top_logprobs` has the token itself too, as well as the likeliest ones."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]

    @classmethod
    def of(cls, scores: Sequence[TokenScores]) -> "CompletionLogprobs":
        return cls(
            text_offset=[one.offset for one in scores],
            token_logprobs=[_finite(one.token.logprob) for one in scores],
            tokens=[_name(one.token.content) for one in scores],
            # Of tokens with the same name the likeliest stays, but the one that was chosen before all.
            top_logprobs=[_by_name((*reversed(one.alternatives), one.token)) for one in scores],
        )


class PromptLogprob(Reply):
    """vLLM's. `rank` is null below the alternatives that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


def prompt_logprobs(
    likely: Sequence[Sequence[LikelyToken] | None] | None,
) -> list[dict[int, PromptLogprob] | None] | None:
    """By token id, one entry a prompt token; None if they were not asked for."""
    if likely is None:
        return None
    return [
        None
        if tokens is None
        else {
            one.token_id: PromptLogprob(
                logprob=max(one.logprob, _LEAST), rank=one.rank, decoded_token=one.content.decode(errors="replace")
            )
            for one in tokens
        }
        for tokens in likely
    ]


def _name(content: bytes) -> str:
    """The text, or OpenAI's spelling of bytes that are none: a key of its own for each."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _by_name(tokens: Sequence[ScoredToken]) -> dict[str, float] | None:
    """None where nothing predicts the token."""
    found = {_name(token.content): _finite(token.logprob) for token in tokens}
    return None if None in found.values() else {name: value for name, value in found.items() if value is not None}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST)
