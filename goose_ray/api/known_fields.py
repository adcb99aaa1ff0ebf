"""Request fields of OpenAI and vLLM that are known here and not served: accepted where nothing in the answer depends on
them, refused by name where they would change it. Chat and text completions have them in common.
"""

from typing import Annotated, Any

from goose_ray.api.validation import WireModel, only_neutral

__all__ = ["KnownFields"]


class KnownFields(WireModel):
    """A field without `only_neutral` is accepted."""

    # OpenAI's
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    # vLLM's; answers have ids of their own, and offsets and features come from other endpoints there
    request_id: str | None = None
    session_id: str | None = None
    return_token_offsets: bool | None = None
    return_mm_kwargs: bool | None = None

    # OpenAI's
    moderation: Annotated[dict[str, Any] | None, only_neutral()] = None

    # vLLM's
    use_beam_search: Annotated[bool | None, only_neutral(False)] = None
    length_penalty: Annotated[float | None, only_neutral(1)] = None
    skip_special_tokens: Annotated[bool | None, only_neutral(True)] = None
    spaces_between_special_tokens: Annotated[bool | None, only_neutral(True)] = None
    truncate_prompt_tokens: Annotated[int | None, only_neutral()] = None
    truncation_side: Annotated[str | None, only_neutral()] = None
    logprob_token_ids: Annotated[list[int] | None, only_neutral()] = None
    return_tokens_as_token_ids: Annotated[bool | None, only_neutral(False)] = None
    watermarking: Annotated[bool | None, only_neutral(False)] = None
    thinking_token_budget: Annotated[int | None, only_neutral(-1)] = None
    repetition_detection: Annotated[dict[str, Any] | None, only_neutral()] = None
    stream_interval: Annotated[int | None, only_neutral(1)] = None
    routed_experts_prompt_start: Annotated[int | None, only_neutral(0)] = None
    kv_transfer_params: Annotated[dict[str, Any] | None, only_neutral()] = None
    ec_transfer_params: Annotated[dict[str, Any] | None, only_neutral()] = None
    vllm_xargs: Annotated[dict[str, Any] | None, only_neutral({})] = None
