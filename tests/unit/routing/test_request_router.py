"""The router as Serve calls it: replicas that are full, that die, and calls of one HTTP request."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.request_router import PendingRequest, ReplicaID

from goose_ray.api.calls import GenerateCall
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.routing.request_router import PrefixRequestRouter

DEPLOYMENT = DeploymentID("GooseServer", "goose")


class Replica:
    """Takes four requests; `num_requests` is what it says of itself."""

    max_ongoing_requests = 4
    multiplexed_model_ids: frozenset[str] = frozenset()
    node_id = availability_zone = "here"

    def __init__(self, name: str, num_requests: int = 0) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.num_requests = num_requests
        self.answers = asyncio.Event()
        self.answers.set()

    @property
    def name(self) -> str:
        return str(self.replica_id.unique_id)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        await self.answers.wait()
        return self.num_requests


def pending(text: str, request_id: str = "r", http_request: str = "") -> PendingRequest:
    call = GenerateCall(request_id=request_id, prompt=text, sampling=SamplingParams(), clip_max_tokens=True)
    metadata = RequestMetadata(request_id=http_request, internal_request_id=http_request or request_id)
    return PendingRequest(args=[call], kwargs={}, metadata=metadata)


class Router:
    """What Serve does with a router, without the replicas' processes."""

    def __init__(self, *replicas: Replica) -> None:
        self.router = PrefixRequestRouter(
            deployment_id=DEPLOYMENT,
            handle_source=DeploymentHandleSource.REPLICA,
            use_replica_queue_len_cache=True,
            initial_backoff_s=0.001,
            max_backoff_s=0.001,
        )
        self.router.initialize_state(blocks_per_replica=1000)
        self.router.update_replicas(list(replicas))

    async def route(self, request: PendingRequest, *, is_retry: bool = False) -> Replica:
        replica: Replica = await self.router._choose_replica_for_request(request, is_retry=is_retry)
        self.router.on_send_request(replica.replica_id)
        self.router.on_request_routed(request, replica.replica_id, None)
        return replica

    def finish(self, replica: Replica) -> None:
        self.router.decrement_queue_len_cache(replica.replica_id)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


def test_a_conversation_returns_and_others_spread() -> None:
    async def scenario() -> None:
        router = Router(Replica("a"), Replica("b"))
        used = set()
        for number in range(16):
            text = f"{number} " * 1000
            first = await router.route(pending(text, f"{number}-1"))
            router.finish(first)
            for turn in range(2, 4):
                text += "and so on " * 100
                again = await router.route(pending(text, f"{number}-{turn}"))
                router.finish(again)
                assert again is first
            used.add(first.name)
        assert used == {"a", "b"}

    run(scenario)


def test_all_calls_of_one_http_request_get_a_place_and_what_they_asked_for() -> None:
    """Serve's own bookkeeping is by an id that they share."""

    async def scenario() -> None:
        router = Router(Replica("a"), Replica("b"))
        calls = [pending(f"{number} " * 1000, f"r-{number}", "one") for number in range(8)]
        routed = await asyncio.gather(*(router.route(call) for call in calls))
        assert {replica.name for replica in routed} == {"a", "b"}
        for replica in routed:
            router.finish(replica)
        again = [pending(f"{number} " * 1000, f"s-{number}", "two") for number in range(8)]
        # each alone, so that no other's place is in its way
        for call, before in zip(again, routed, strict=True):
            replica = await router.route(call)
            router.finish(replica)
            assert replica is before

    run(scenario)


def test_who_finds_no_place_waits_for_one() -> None:
    async def scenario() -> None:
        replicas = [Replica("a", 4), Replica("b", 4)]
        router = Router(*replicas)
        waiting = [asyncio.create_task(router.route(pending("x " * 1000, f"r{i}"))) for i in range(3)]
        given_up = asyncio.create_task(router.route(pending("y " * 1000, "y")))
        while not router.router.num_routing_tasks_in_backoff:
            await asyncio.sleep(0)
        assert not any(task.done() for task in (*waiting, given_up))
        given_up.cancel()
        replicas[1].num_requests = 1
        assert {replica.name for replica in await asyncio.gather(*waiting)} == {"b"}
        with pytest.raises(asyncio.CancelledError):
            await given_up

    run(scenario)


def test_a_full_replica_is_passed_over() -> None:
    async def scenario() -> None:
        replicas = {name: Replica(name) for name in "ab"}
        router = Router(*replicas.values())
        first = await router.route(pending("x " * 1000, "1"))
        first.num_requests = 4
        router.router.on_new_queue_len_info(first.replica_id, 4)
        assert await router.route(pending("x " * 1000, "2")) is not first

    run(scenario)


def test_a_request_that_comes_again_goes_to_another_replica() -> None:
    async def scenario() -> None:
        router = Router(Replica("a"), Replica("b"))
        first = await router.route(pending("x " * 1000))
        # the other is busier, and knows nothing
        other = next(r for r in router.router.curr_replicas.values() if r is not first)
        router.router.on_new_queue_len_info(other.replica_id, 3)
        assert await router.route(pending("x " * 1000)) is other
        router.router.on_replica_actor_died(first.replica_id)
        assert await router.route(pending("x " * 1000)) is other

    run(scenario)


def test_a_replica_that_does_not_answer_counts_as_full() -> None:
    async def scenario() -> None:
        silent, other = Replica("a"), Replica("b")
        silent.answers.clear()
        router = Router(silent, other)
        router.router.on_new_queue_len_info(other.replica_id, 2)
        assert [await router.route(pending(f"{i} " * 1000, f"r{i}")) for i in range(2)] == [other, other]

    run(scenario)


def test_calls_that_have_no_prompt_go_anywhere() -> None:
    async def scenario() -> None:
        router = Router(Replica("a"), Replica("b"))
        metadata = RequestMetadata(request_id="", internal_request_id="control")
        request: Any = PendingRequest(args=[], kwargs={}, metadata=metadata)
        assert (await router.route(request)).name in "ab"

    run(scenario)
