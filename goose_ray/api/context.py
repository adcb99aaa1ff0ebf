"""How many tokens a call may generate, and verify in a step. Knows lengths alone, neither tokens nor models."""

from collections.abc import Sequence
from dataclasses import replace

from goose.speculator import AUTOMATIC_NODES
from goose_ray.api.calls import GenerateCall
from goose_ray.config import EngineConfig
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import InvalidRequestError

__all__ = ["fit_to_context", "nodes_of_auto", "refuse_too_large_budgets", "refuse_too_many_ids"]


def refuse_too_many_ids(calls: Sequence[GenerateCall], kv_cache_tokens: int) -> None:
    """Raises InvalidRequestError for token ids that no replica can hold, before any are sent to one for each choice."""
    for call in calls:
        if isinstance(call.prompt, tuple) and len(call.prompt) > kv_cache_tokens:
            raise InvalidRequestError(
                f"This deployment's KV cache holds {kv_cache_tokens} tokens, and its max_model_len (see /v1/models) "
                f"may be less; your {call.prompt_param} has {len(call.prompt)}. Please shorten it.",
                param=call.prompt_param,
                code="context_length_exceeded",
            )


def refuse_too_large_budgets(calls: Sequence[GenerateCall], max_budget: int) -> None:
    """Raises InvalidRequestError: a policy takes room for its nodes before it knows how many a step has."""
    for call in calls:
        if isinstance(call.budget, int) and call.budget > max_budget:
            raise InvalidRequestError(
                f"goose.budget must be at most {max_budget} here, not {call.budget}", "goose.budget"
            )


def nodes_of_auto(config: EngineConfig) -> int | None:
    """What a call's budget `auto` stands for; None: the engine's own budget.

    An engine with a budget in numbers measures no durations, without which an automatic one is a number too.
    """
    return None if config.budget == "auto" else min(AUTOMATIC_NODES, config.max_batch_rows)


def fit_to_context(call: GenerateCall, num_prompt_tokens: int, context_length: int) -> SamplingParams:
    """The call's sampling with a `max_tokens` that the context holds.

    Raises InvalidRequestError if the prompt leaves no room, or less than the client asked for.
    """
    room = context_length - num_prompt_tokens
    sampling = call.sampling
    if room < 1:
        raise InvalidRequestError(
            f"This model's maximum context length is {context_length} tokens; the {num_prompt_tokens} of your "
            f"{call.prompt_param} leave no room for an answer. Please shorten your {call.prompt_param}.",
            param=call.prompt_param,
            code="context_length_exceeded",
        )
    if call.clip_max_tokens:
        return replace(sampling, max_tokens=min(sampling.max_tokens, room))
    if sampling.max_tokens > room:
        # a limit that no prompt would leave room for is itself the fault
        param = call.max_tokens_param if sampling.max_tokens >= context_length else call.prompt_param
        raise InvalidRequestError(
            f"This model's maximum context length is {context_length} tokens; you asked for "
            f"{num_prompt_tokens + sampling.max_tokens} ({num_prompt_tokens} in the {call.prompt_param}, "
            f"{sampling.max_tokens} in the answer). Please shorten one of them.",
            param=param,
            code="context_length_exceeded",
        )
    return sampling
