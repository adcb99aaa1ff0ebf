"""From calls to their deltas: what every endpoint that answers prompts does alike, whatever its answers look like."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from goose_ray.api.auth.tenant import Tenant
from goose_ray.api.backend import Backend
from goose_ray.api.calls import Delta, GenerateCall
from goose_ray.api.context import refuse_too_large_budgets, refuse_too_many_ids
from goose_ray.api.reasoning.hiding import without_scores_of_thinking
from goose_ray.api.streaming import merged
from goose_ray.api.tools.choice import ToolChoice
from goose_ray.api.tools.reader import with_tool_calls
from goose_ray.errors import EngineDeadError

__all__ = ["Answering", "HttpLimits", "begun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one request may cost."""

    max_body_bytes: int
    body_timeout_s: float
    # Of its choices so many are under way at a time: all of them are more than replicas take, and would be refused.
    max_calls_at_once: int
    kv_cache_tokens: int
    # nodes that a request may ask to be verified in a step
    max_budget: int


class Answering:
    def __init__(self, backend: Backend, limits: HttpLimits) -> None:
        self._backend = backend
        self._limits = limits

    def deltas(
        self,
        calls: Sequence[GenerateCall],
        *,
        tenant: Tenant | None,
        tools: ToolChoice | None = None,
        choices_per_prompt: int = 1,
    ) -> AsyncGenerator[tuple[int, Delta]]:
        """(index of the call, delta) as they come. Raises InvalidRequestError for what no replica can hold."""
        refuse_too_many_ids(calls, self._limits.kv_cache_tokens)
        refuse_too_large_budgets(calls, self._limits.max_budget)
        if tenant is not None:
            calls = [tenant.isolated(call) for call in calls]
        deltas = merged(self._backend, calls, max_at_once=self._limits.max_calls_at_once)
        if not all(call.tells_reasoning for call in calls):
            deltas = without_scores_of_thinking(deltas)
        if tenant is not None:
            deltas = tenant.charged(deltas, choices_per_prompt)
        if tools is not None and tools.kind != "none":
            deltas = with_tool_calls(deltas, tools)
        return deltas


async def begun(deltas: AsyncGenerator[tuple[int, Delta]]) -> AsyncGenerator[tuple[int, Delta]]:
    """The same deltas, once the first has come. So whatever refuses a request is raised here, while its answer can
    still have a status of its own. Closes `deltas` if it raises.
    """
    try:
        first = await anext(deltas, None)
    except BaseException:
        await deltas.aclose()
        raise
    if first is None:
        raise EngineDeadError("the replica ended its answer before it began")
    return _chained(first, deltas)


async def _chained(
    first: tuple[int, Delta], rest: AsyncGenerator[tuple[int, Delta]]
) -> AsyncGenerator[tuple[int, Delta]]:
    try:
        yield first
        async for item in rest:
            yield item
    finally:
        await rest.aclose()
