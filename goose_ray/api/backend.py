"""What the HTTP side needs of the system behind it. `ServeBackend` is the real one; tests of routes bring a fake."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from goose_ray.api.calls import DecodeCall, Delta, EncodeCall, Encoded, GenerateCall
from goose_ray.engine.trace import StepRecord
from goose_ray.telemetry.acceptance_state import ClusterView
from goose_ray.telemetry.dashboard.live import ReplicaLive

__all__ = ["Backend", "ClusterState", "ReplicaSteps"]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """`remembered` is false while the aggregator is away: then the view holds the answering replicas alone."""

    view: ClusterView
    remembered: bool


@dataclass(frozen=True, slots=True)
class ReplicaSteps:
    """The last steps of one replica, oldest first."""

    replica_id: str
    steps: tuple[StepRecord, ...]


class Backend(Protocol):
    def generate(self, call: GenerateCall) -> AsyncGenerator[Delta]:
        """Raises GooseRayError. Closing the generator frees the sequence before the replica's next step."""
        ...

    async def encode(self, call: EncodeCall) -> Encoded:
        """By the model's tokenizer. Raises GooseRayError, as `decode` does."""
        ...

    async def decode(self, call: DecodeCall) -> str: ...

    async def cluster(self) -> ClusterState:
        """Fresh reports of the replicas, and what is remembered of those that do not answer."""
        ...

    async def steps(self, count: int) -> list[ReplicaSteps]:
        """The last `count` steps of every replica that answers."""
        ...

    async def live(self, since: float) -> list[ReplicaLive]:
        """Recent trees, and samples from unix time `since` on, of every replica that answers."""
        ...
