"""Disks that are full, gone, or hold rubbish.

A process that may not make files grow sees what one sees on a full disk: its log, its caches and its snapshots cannot
be written.
"""

import asyncio
import resource
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

from chaos import processes
from chaos.process_faults import kill
from chaos.processes import Process
from chaos.stage import Stage

__all__ = ["full", "snapshot_in_the_way", "snapshot_of_rubbish"]


def full(role: str) -> Callable[[Stage, Random], Awaitable[None]]:
    """For one to four seconds, to all of the role; some of it has to write meanwhile."""

    async def happens(stage: Stage, random: Random) -> None:
        async with _no_file_grows(stage.of_role(role)):
            await asyncio.sleep(random.uniform(1, 4))

    return happens


async def snapshot_in_the_way(stage: Stage, random: Random) -> None:
    """Where the aggregator's snapshots go to there is a file, and the aggregator is killed."""
    folder = stage.snapshot.parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_bytes(b"in the way")
    try:
        await kill(processes.AGGREGATOR)(stage, random)
        await stage.whole_within(60)
    finally:
        folder.unlink()


async def snapshot_of_rubbish(stage: Stage, random: Random) -> None:
    """The aggregator is killed, and what it finds when it comes back is not its memory."""
    stage.snapshot.parent.mkdir(exist_ok=True)
    whole = stage.snapshot.read_bytes() if stage.snapshot.exists() else b""
    stage.snapshot.write_bytes(random.choice([b"", b"rubbish", whole[: len(whole) // 2], random.randbytes(1000)]))
    await kill(processes.AGGREGATOR)(stage, random)


@asynccontextmanager
async def _no_file_grows(victims: Sequence[Process]) -> AsyncGenerator[None]:
    limits = {victim.pid: resource.prlimit(victim.pid, resource.RLIMIT_FSIZE) for victim in victims}
    try:
        for pid, (_, hard) in limits.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
        yield
    finally:
        for victim in processes.find():
            # who has died meanwhile has no limits
            if victim.pid in limits:
                resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, limits[victim.pid])
