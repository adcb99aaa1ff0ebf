"""Serve's request router for `GooseServer`: prefix affinity over what Serve knows of its replicas.

Every process with a handle has one. Serve pickles this module by value, so it keeps nothing at module level that
cannot be pickled. Calls other than `GenerateCall`s go to the less busy of two replicas.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from goose_ray.api.calls import GenerateCall
from goose_ray.routing.prefix_affinity import PrefixAffinity
from goose_ray.routing.prompt_key import PromptKey, prompt_key

__all__ = ["PrefixRequestRouter"]

# Requests that are remembered, with where they went.
_MAX_REQUESTS = 4096


@dataclass(slots=True)
class _Routed:
    key: PromptKey
    # the replica that took it last
    taken_by: str | None = None


class PrefixRequestRouter(RequestRouter):
    """A request that comes again has lost its replica, and goes to another one if there is one."""

    def initialize_state(self, *, blocks_per_replica: int) -> None:
        self._affinity = PrefixAffinity(blocks_per_replica=blocks_per_replica, rng=Random())
        self._by_name: dict[str, RunningReplica] = {}
        # by request id
        self._routed: OrderedDict[str, _Routed] = OrderedDict()
        # what each of Serve's routing tasks looks for a replica for
        self._request_of_task: WeakKeyDictionary[asyncio.Task[Any], PendingRequest] = WeakKeyDictionary()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of one replica each: Serve takes the first that has a place."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        task = asyncio.current_task()
        assert task is not None
        self._request_of_task[task] = pending_request
        call = _call_of(pending_request)
        routed = _Routed(PromptKey()) if call is None else self._note(call)
        known = self._affinity.candidates(routed.key)
        loads = {name: self._load_of(name) for name in known}
        ranked = self._affinity.ranked(routed.key, known, loads, avoid=routed.taken_by)
        return [[self._by_name[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        call = _call_of(pending_request)
        if call is not None:
            routed = self._note(call)
            routed.taken_by = replica_id.unique_id
            self._affinity.sent(routed.key, replica_id.unique_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._follow()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._follow()

    def _fulfill_next_pending_request(self, replica: RunningReplica, request_metadata: Any = None) -> None:
        """The replica is for the request that it was chosen for.

        Serve looks that up by an id that all calls of one HTTP request share, and so finds one of them alone.
        """
        task = asyncio.current_task()
        assert task is not None
        request = self._request_of_task[task]
        if not request.future.done():
            self._record_queue_wait_time(request)
            request.future.set_result(replica)
            self._remove_pending_request_from_indices(request)

    def _follow(self) -> None:
        self._by_name = {replica_id.unique_id: replica for replica_id, replica in self.curr_replicas.items()}
        self._affinity.set_replicas(self._by_name)

    def _note(self, call: GenerateCall) -> _Routed:
        routed = self._routed.get(call.request_id)
        if routed is None:
            routed = self._routed[call.request_id] = _Routed(prompt_key(call))
            if len(self._routed) > _MAX_REQUESTS:
                self._routed.popitem(last=False)
        return routed

    def _load_of(self, name: str) -> int:
        """Requests that the replica has. One that was silent for ten seconds counts as idle: Serve asks it before it
        sends it anything.
        """
        load: int | None = self.replica_queue_len_cache.get(self._by_name[name].replica_id)
        return load or 0


def _call_of(pending_request: PendingRequest) -> GenerateCall | None:
    return next((value for value in pending_request.args if isinstance(value, GenerateCall)), None)
