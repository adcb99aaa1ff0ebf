"""Two replicas and their aggregator: what they count together, and what is left when one of them dies."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import ray

from serve.collector import CollectedSpan, Collector
from serve.helpers import MODEL, Server, async_client, eventually

COLLECTOR = Collector()
# What is learned is offered soon, so that a replica that starts finds it. No trace begins here: others' are kept.
ARGS = {"share_period_s": 1.0, "tracing_endpoint": COLLECTOR.url, "tracing_sample": 0.0}
# fixed: nothing is measured when a replica starts
ENGINE = {"budget": 16}
SERVER = {"autoscaling_config": {"min_replicas": 2, "max_replicas": 2, "target_ongoing_requests": 8}}

PROMPTS = ("Count from one to ten.", "List the days of the week.", "Say hello three times.")


@pytest.fixture(scope="module", autouse=True)
def collecting() -> Iterator[None]:
    with COLLECTOR.collecting():
        yield


@pytest.fixture(autouse=True)
def both_replicas(server: Server) -> None:
    """A replica reports itself before Serve sends it requests: wait until both get them."""
    eventually(lambda: len(replicas_behind_the_router(server)) == 2, within_s=120, what="two replicas to send to")


def acceptance(server: Server) -> Any:
    return server.get("/v1/goose/acceptance")


def live_replicas(server: Server) -> dict[str, Any]:
    """By incarnation."""
    return {r["incarnation"]: r for r in acceptance(server)["replicas"] if r["healthy"]}


def replicas_behind_the_router(server: Server) -> set[str]:
    return {replica["replica_id"] for replica in server.get("/v1/goose/steps?last=1")["replicas"]}


def counts_of(sources: dict[str, Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, source in sources.items():
        counts[f"{name} attempted"] += source["attempted"]
        counts[f"{name} accepted"] += source["accepted"]
    return +counts


def sum_of(parts: Iterable[Counter[str]]) -> Counter[str]:
    return sum(parts, Counter())


def load(server: Server, num_requests: int) -> Counter[str]:
    """Sends requests together; what their answers say was attempted and accepted."""

    async def send() -> list[Any]:
        async with async_client(server) as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=MODEL,
                        messages=[{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
                        temperature=0,
                        max_tokens=12,
                        extra_body={"return_goose_stats": True},
                    )
                    for number in range(num_requests)
                )
            )

    return sum_of(counts_of(answer.model_extra["goose"]["sources"]) for answer in asyncio.run(send()))


def aggregator_names() -> list[str]:
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "acceptance_aggregator" in a["name"]]


def test_the_aggregate_is_the_sum_of_what_the_replicas_counted(server: Server) -> None:
    before = acceptance(server)
    told = load(server, 12)
    after = acceptance(server)
    assert after["remembered"]
    own = {r["incarnation"]: counts_of(r["sources"]) for r in after["replicas"]}
    total = counts_of(after["sources"])
    assert total == sum_of(own.values()) + counts_of(after["retired"]["sources"])
    assert total - counts_of(before["sources"]) == told
    assert sum(value for key, value in total.items() if "attempted" in key) == after["total"]["attempted"]
    took_part = [i for i in live_replicas(server) if own[i]]
    assert len(took_part) == 2, "12 requests at once went to one replica"


def test_every_replica_is_tuned_and_replies_stay_the_same(server: Server) -> None:
    def all_tuned() -> bool:
        load(server, 2)
        return all(replica["tuning"]["version"] > 0 for replica in live_replicas(server).values())

    before = server.chat(PROMPTS[0], max_tokens=24)["choices"][0]["message"]["content"]
    eventually(all_tuned, within_s=60, what="tunings to reach both")

    def all_shown() -> bool:
        seen = acceptance(server)
        versions = {replica["tuning"]["version"] for replica in seen["replicas"] if replica["live"]}
        # each has its own
        is_shown = len(versions) == 2 and seen["tuning_version"] == max(versions)
        return is_shown and server.metric("goose_tuning_version") == sum(versions)

    # a new one may come between two looks
    eventually(all_shown, within_s=60, what="the tunings in force to be shown")
    after = {server.chat(PROMPTS[0], max_tokens=24)["choices"][0]["message"]["content"] for _ in range(3)}
    assert after == {before}


def test_the_dashboard_is_told_of_both_replicas(server: Server) -> None:
    def is_told() -> bool:
        load(server, 8)
        live = server.get("/v1/goose/live")
        rates = [replica["tokens_per_s"] for replica in live["replicas"] if replica["live"]]
        drawn = {tree["replica_id"] for tree in live["trees"]}
        return len(rates) == 2 and all(rates) and drawn == replicas_behind_the_router(server)

    eventually(is_told, within_s=60, what="rates and trees of both")
    assert server.get("/v1/goose/live")["cluster"]["tau"] >= 1


def test_a_conversation_returns_to_the_replica_that_knows_it(server: Server) -> None:
    """By chance, as with Serve's own router, four conversations would do so in one of 256 runs."""
    for number in range(4):
        messages = [{"role": "user", "content": f"Remember this. {f'Item {number}. ' * 60}Which item?"}]
        last = 0
        for turn in range(3):
            body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 4, "ignore_eos": True}
            answer = server.http.post("/v1/chat/completions", json=body).json()
            # all but the end of the template, which another message follows then
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= last - 8, f"{number}, turn {turn}"
            last = answer["usage"]["prompt_tokens"]
            reply = answer["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And then?"}]


def test_a_client_s_trace_goes_through_ingress_and_replica_to_a_collector(server: Server) -> None:
    trace, client = os.urandom(16).hex(), os.urandom(8).hex()
    messages = [{"role": "user", "content": PROMPTS[0]}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "ignore_eos": True, "stream": True}
    headers = {"traceparent": f"00-{trace}-{client}-01"}
    server.chat(PROMPTS[1], max_tokens=2)
    with server.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        assert "[DONE]" in response.read().decode()
    names = {"POST /v1/chat/completions", "generate", "queue", "prefill", "decode", "stream"}
    eventually(lambda: len(COLLECTOR.trace(trace)) >= len(names), within_s=60, what="all spans of the request")
    spans: dict[str, CollectedSpan] = {span.name: span for span in COLLECTOR.trace(trace)}
    assert spans.keys() == names
    assert len(COLLECTOR.trace(trace)) == len(names)
    post, generate = spans["POST /v1/chat/completions"], spans["generate"]
    assert post.parent_id == client
    assert {spans[name].parent_id for name in ("generate", "stream")} == {post.span_id}
    assert {spans[name].parent_id for name in ("queue", "prefill", "decode")} == {generate.span_id}
    # two processes, which tell their clocks alike on one machine
    replica = generate.resource["service.instance.id"]
    assert replica in replicas_behind_the_router(server)
    assert post.resource["service.instance.id"] != replica
    times = [post.start_ns, generate.start_ns, *(spans[name].end_ns for name in ("queue", "prefill", "decode"))]
    assert times == sorted(times)
    assert generate.end_ns <= post.end_ns
    assert generate.attributes["gen_ai.usage.output_tokens"] == 8
    # who comes without a trace is not traced at this sample
    assert {span.trace_id for span in COLLECTOR.spans} == {trace}


def test_a_killed_aggregator_is_replaced_and_whole_again(server: Server) -> None:
    load(server, 4)
    before = acceptance(server)
    (name,) = aggregator_names()
    old = ray.get_actor(name, namespace="serve")
    old_id = old._actor_id
    ray.kill(old)
    # meanwhile the answer is put together from the replicas themselves
    assert counts_of(acceptance(server)["sources"]) == counts_of(before["sources"])
    eventually(lambda: acceptance(server)["remembered"], within_s=60, what="a new aggregator")
    (name,) = aggregator_names()
    assert ray.get_actor(name, namespace="serve")._actor_id != old_id
    after = acceptance(server)
    assert counts_of(after["sources"]) == counts_of(before["sources"])
    assert {r["incarnation"] for r in after["replicas"]} == {r["incarnation"] for r in before["replicas"]}


def test_a_killed_replica_is_replaced_while_the_other_answers(server: Server) -> None:
    load(server, 4)
    before = counts_of(acceptance(server)["sources"])
    replicas = live_replicas(server)
    victim, survivor = replicas
    os.kill(replicas[victim]["pid"], signal.SIGKILL)
    answers = 0

    def is_replaced() -> bool:
        nonlocal answers
        server.chat("Hi", max_tokens=2)
        answers += 1
        live = live_replicas(server)
        return len(live) == 2 and victim not in live

    eventually(is_replaced, within_s=120, what="a new replica")
    assert answers > 1
    after = acceptance(server)
    assert survivor in live_replicas(server)
    # it has begun with the texts that the survivor had offered
    (fresh,) = [r for name, r in live_replicas(server).items() if name != survivor]
    assert fresh["start_text_tokens"] > 0
    # what the dead one had counted stays in the sum
    missing = before - counts_of(after["sources"])
    assert not missing
    assert [r["live"] for r in after["replicas"] if r["incarnation"] == victim] == [False]


def test_requests_on_their_way_when_a_replica_dies_are_answered_by_the_other(server: Server) -> None:
    def all_run() -> bool:
        return server.metric("vllm:num_requests_running") == 4

    async def scenario() -> list[str]:
        async with async_client(server) as client:
            sending = [
                asyncio.create_task(
                    client.chat.completions.create(
                        model=MODEL,
                        messages=[{"role": "user", "content": "Tell me a story."}],
                        max_tokens=24,
                        temperature=0.9,
                        seed=7,
                        extra_body={"ignore_eos": True},
                    )
                )
                for _ in range(4)
            ]
            await asyncio.to_thread(eventually, all_run, within_s=60, what="all four requests to run")
            victim = next(iter(live_replicas(server).values()))
            os.kill(victim["pid"], signal.SIGKILL)
            return [(await task).choices[0].message.content or "" for task in sending]

    texts = asyncio.run(scenario())
    assert len(set(texts)) == 1, "the same seed must give the same text wherever it runs"
    assert texts[0]
