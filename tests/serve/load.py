"""What goes on while tests disturb an application: streams, and plain requests one after the other."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import openai

from serve.helpers import MODEL, Server, async_client

__all__ = ["NUM_STREAMS", "Answers", "answers"]

NUM_STREAMS = 8
_PLAIN = {"model": MODEL, "prompt": "1, 2, 3, 4,", "max_tokens": 4, "temperature": 0}
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Answers:
    # by number
    streams: list[str]
    # different ones alone, and how many there were
    plain: set[str]
    num_plain: int


def answers(server: Server, *, max_tokens: int, disturb: Callable[[], object] | None = None) -> Answers:
    """Of `NUM_STREAMS` seeded streams at once, during which `disturb` runs in a thread, once all have begun. The plain
    requests come till the last of them ends. Raises for any that is not answered 200.
    """

    async def scenario() -> Answers:
        over = asyncio.Event()
        begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        async with async_client(server, timeout=600) as client, asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(_stream(client, n, max_tokens, begun[n])) for n in range(NUM_STREAMS)]
            await asyncio.gather(*(event.wait() for event in begun))
            plain = tasks.create_task(_plain_requests(server, over))
            if disturb is not None:
                await asyncio.to_thread(disturb)
            texts = await asyncio.gather(*streams)
            over.set()
            replies = await plain
        return Answers(texts, set(replies), len(replies))

    return asyncio.run(scenario())


async def _stream(client: openai.AsyncOpenAI, number: int, max_tokens: int, begun: asyncio.Event) -> str:
    text = ""
    stream = await client.completions.create(
        model=MODEL,
        prompt=f"Story number {number}: once upon a time",
        max_tokens=max_tokens,
        temperature=0.8,
        seed=number,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    finish_reason = None
    async for chunk in stream:
        assert finish_reason is None
        text += chunk.choices[0].text
        finish_reason = chunk.choices[0].finish_reason
        begun.set()
    assert finish_reason == "length"
    return text


async def _plain_requests(server: Server, over: asyncio.Event) -> list[str]:
    texts = []
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as http:
        while not over.is_set():
            response = await http.post("/v1/completions", json=_PLAIN)
            assert response.status_code == 200, response.text
            texts.append(response.json()["choices"][0]["text"])
            await asyncio.sleep(_PAUSE_S)
    return texts
