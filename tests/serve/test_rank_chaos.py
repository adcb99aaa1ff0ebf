"""Two replicas of two ranks each under load, and what may happen to a process: no stream shows any of it.

`make ranks` runs it: every loss is followed by the start of another gang.
"""

import asyncio
import os
import signal
import sys
import time
from typing import Any

import pytest

from serve.helpers import MODEL, Server, async_client, eventually
from serve.test_tensor_parallel import command, ranks

pytestmark = pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: takes minutes")

DEPLOYMENT = "goose-tp2.yaml"
ENGINE = {"budget": 16, "kv_cache_tokens": 4096}
# room for both on the session's four CPUs
SERVER = {"num_replicas": 2, "placement_group_bundles": [{"CPU": 1}, {"CPU": 0.1}, {"CPU": 0.1}]}
NUM_STREAMS = 8
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 40,
    "temperature": 0.8,
    "extra_body": {"ignore_eos": True},
    "stream": True,
}


def healthy_replicas(server: Server) -> list[Any]:
    return [r for r in server.get("/v1/goose/acceptance")["replicas"] if r["live"] and r["healthy"]]


async def stream(client: Any, number: int, begun: asyncio.Event) -> str:
    text = ""
    prompt = f"Story number {number}: once upon a time"
    async for chunk in await client.completions.create(prompt=prompt, seed=number, **REQUEST):
        text += chunk.choices[0].text
        begun.set()
    return text


async def all_streams(server: Server, victim: int | None, how: signal.Signals) -> list[str]:
    """Of 8 requests at once; once all have begun, `victim` gets the signal."""
    async with async_client(server, timeout=600) as client:
        begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        running = [asyncio.create_task(stream(client, number, begun[number])) for number in range(NUM_STREAMS)]
        await asyncio.gather(*(event.wait() for event in begun))
        if victim is not None:
            os.kill(victim, how)
        return list(await asyncio.gather(*running))


VICTIMS = {
    "a rank": signal.SIGKILL,
    "another rank": signal.SIGKILL,
    "a stopped rank": signal.SIGSTOP,
    "a replica": signal.SIGKILL,
    "a stopped replica": signal.SIGSTOP,
}


@pytest.mark.parametrize("who", VICTIMS)
def test_streams_are_those_of_an_undisturbed_run(server: Server, who: str, capsys: pytest.CaptureFixture[str]) -> None:
    """B16, B17, B20."""

    def is_whole() -> bool:
        return len(ranks()) == 4 and len(healthy_replicas(server)) == 2

    eventually(is_whole, within_s=300, what="two replicas")
    started_s = time.monotonic()
    undisturbed = asyncio.run(all_streams(server, None, signal.SIGKILL))
    undisturbed_s = time.monotonic() - started_s
    before = ranks()
    victim = healthy_replicas(server)[0]["pid"] if "replica" in who else sorted(before)[who == "another rank"]
    started_s = time.monotonic()
    disturbed = asyncio.run(all_streams(server, victim, VICTIMS[who]))
    disturbed_s = time.monotonic() - started_s
    assert disturbed == undisturbed
    assert len(set(disturbed)) == NUM_STREAMS
    eventually(
        lambda: len(before & ranks()) == 2, within_s=30, what="the end of the gang that was hit, and of no other"
    )
    eventually(lambda: not command(victim), within_s=30, what="the end of the process that was hit")
    eventually(is_whole, within_s=300, what="another replica")
    whole_s = time.monotonic() - started_s
    with capsys.disabled():
        sys.stdout.write(
            f"\n{who}: all streams whole after {disturbed_s:.0f} s, undisturbed {undisturbed_s:.0f} s; "
            f"two replicas again after {whole_s:.0f} s\n"
        )
