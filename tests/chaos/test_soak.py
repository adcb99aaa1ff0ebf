"""Minutes of mixed traffic: no status that nobody should see, and no process that grows.

`make soak`: SOAK_MINUTES of it, SOAK_CLIENTS at once, with the embedded model, or SOAK_MODEL. It has glibc give large
pieces back at once (MALLOC_MMAP_THRESHOLD_): the logits of a step, 25 MB of them, else stay in a free list or not as it
comes, and that is more than is looked for.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import httpx
import pytest
from serve.application import serving
from serve.helpers import eventually

from chaos import processes
from chaos.filling import fill
from chaos.growth import slope
from chaos.mixed_traffic import MixedTraffic
from chaos.processes import Process

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("SOAK_MINUTES" not in os.environ, reason="SOAK_MINUTES is not set: `make soak` sets it"),
]

_MOST_MB_PER_MINUTE = 1.0
_SAMPLE_EVERY_S = 2.0

# seconds since the start, megabytes
Samples = dict[Process, list[tuple[float, float]]]


async def soak(url: str, model: str, minutes: float, num_clients: int) -> tuple[Samples, Counter[str]]:
    samples: Samples = {process: [] for process in processes.find()}
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        await fill(http, model)
        started_s = time.monotonic()
        clients = [MixedTraffic(http, model, Random(number), longest_words=400) for number in range(num_clients)]

        async def keep_sending(client: MixedTraffic) -> None:
            while time.monotonic() - started_s < 60 * minutes:
                await client.send_one()

        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(keep_sending(client))
            while (now := time.monotonic() - started_s) < 60 * minutes:
                for process, values in samples.items():
                    values.append((now, process.rss_mb()))
                await asyncio.sleep(_SAMPLE_EVERY_S)
    return samples, sum((client.counts for client in clients), Counter())


def test_nothing_grows(
    ray_address: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    minutes, num_clients = float(os.environ["SOAK_MINUTES"]), int(os.environ.get("SOAK_CLIENTS", "8"))
    args = {"aggregator_snapshot": str(tmp_path / "snapshot.json.gz")}
    if os.environ.get("SOAK_MODEL") == "tiny":
        args["model"] = str(request.getfixturevalue("model"))
    # small, so that what is kept of the past is full before it is measured
    engine = {"budget": 16, "max_model_len": 1024, "kv_cache_tokens": 8192, "pool_tokens": 8192}
    one = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 1, "target_ongoing_requests": 32}}
    with serving(ray_address, tmp_path, args=args, engine=engine, server=one) as server:
        model = server.get("/v1/models")["data"][0]["id"]
        samples, counts = asyncio.run(soak(server.url, model, minutes, num_clients))
        eventually(server.is_idle, within_s=30, what="an idle engine after the last request")
    slopes = {process: slope(values) for process, values in samples.items()}
    with capsys.disabled():
        sys.stdout.write(f"\n{minutes:g} minutes, {num_clients} clients: {dict(sorted(counts.items()))}\n")
        for process, found in slopes.items():
            values = samples[process]
            sys.stdout.write(
                f"{process.role}: {values[0][1]:.0f} MB at first, {values[len(values) // 3][1]:.0f} MB warm, "
                f"{values[-1][1]:.0f} MB at the end, {found:+.2f} MB/min\n"
            )
    assert {process.role: found for process, found in slopes.items() if found >= _MOST_MB_PER_MINUTE} == {}
