"""More requests than the limits allow: 429 with Retry-After, recovery, and a second replica when the load stays."""

import asyncio
from typing import Any

import httpx

from serve.helpers import MODEL, Server, async_client, eventually

SERVER = {
    "max_ongoing_requests": 4,
    "max_queued_requests": 4,
    "backpressure_config": {"status_code": 429, "retry_after_s": 1},
    "autoscaling_config": {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 600,
    },
}
# less than Serve lets through, so that the engine's own limit shows too
ENGINE = {"max_running_requests": 2, "max_waiting_requests": 1, "budget": 60}

BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count from one to ten."}],
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
}


# Long enough that none is over before all have arrived.
LONG: dict[str, Any] = {**BODY, "max_tokens": 64, "goose": {"policy": "autoregressive"}}


async def burst(server: Server, num_requests: int) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
        sending = (
            http.post("/v1/chat/completions", json={**LONG, "stream": bool(number % 2)})
            for number in range(num_requests)
        )
        return list(await asyncio.gather(*sending))


def test_beyond_the_limits_clients_are_told_to_come_back_and_then_served(server: Server) -> None:
    answers = asyncio.run(burst(server, 24))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    # four on the replica, of which the engine takes three, and four in the queue
    assert len(refused) >= 24 - 8
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    errors = [answer.json()["error"] for answer in refused]
    assert {error["code"] for error in errors} == {"overloaded"}
    assert any("queue is full" in error["message"] for error in errors), "Serve's limit did not show"
    assert any("the engine holds" in error["message"] for error in errors), "the engine's limit did not show"
    assert server.chat("Hi", max_tokens=1)["choices"]
    assert server.is_idle()


def test_a_client_that_comes_back_is_served_and_lasting_load_gets_a_second_replica(server: Server) -> None:
    async def scenario() -> None:
        async with async_client(server, max_retries=60) as client:

            async def keep_asking() -> None:
                while not done.is_set():
                    await client.chat.completions.create(
                        model=MODEL, messages=BODY["messages"], temperature=0, max_tokens=12
                    )

            done = asyncio.Event()
            asking = [asyncio.create_task(keep_asking()) for _ in range(8)]
            waiting = asyncio.create_task(asyncio.to_thread(eventually, has_two, within_s=120, what="a second replica"))
            await asyncio.wait([waiting, *asking], return_when=asyncio.FIRST_COMPLETED)
            done.set()
            await asyncio.gather(waiting, *asking)

    def has_two() -> bool:
        return bool(server.get("/health")["replicas"]["healthy"] == 2)

    asyncio.run(scenario())
