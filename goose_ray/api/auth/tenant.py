"""Who a request is from: what it pays with, and what it shares its memory with."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from starlette.requests import Request

from goose_ray.api.auth.allowance import Allowance
from goose_ray.api.auth.api_key import ApiKey
from goose_ray.api.calls import Delta, GenerateCall

__all__ = ["TENANT", "Tenant", "tenant_of"]

# where the gate leaves it in the ASGI scope
TENANT = "goose.tenant"


@dataclass(frozen=True, slots=True)
class Tenant:
    key: ApiKey
    allowance: Allowance

    def isolated(self, call: GenerateCall) -> GenerateCall:
        """With a `cache_salt` that no other tenant's call can have: prefix cache and policies keep what they remember
        apart by it.
        """
        return replace(call, cache_salt=f"{self.key.name}:{call.cache_salt or ''}")

    async def charged(
        self, deltas: AsyncGenerator[tuple[int, Delta]], choices_per_prompt: int
    ) -> AsyncGenerator[tuple[int, Delta]]:
        """As they come; their tokens are charged as `usage` counts them. Closing it closes `deltas`."""
        async with aclosing(deltas):
            async for index, delta in deltas:
                counts_prompt = delta.prompt is not None and index % choices_per_prompt == 0
                num_prompt = delta.prompt.num_tokens if counts_prompt and delta.prompt is not None else 0
                self.allowance.charge(self.key, num_prompt + len(delta.token_ids))
                yield index, delta


def tenant_of(request: Request) -> Tenant | None:
    """None where no keys are asked for."""
    tenant: Tenant | None = request.scope.get(TENANT)
    return tenant
