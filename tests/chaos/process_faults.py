"""What happens to processes: they are killed, alone or together, stop for a while, or stop for good."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random

from chaos import processes
from chaos.stage import Stage

__all__ = ["kill", "pause", "stop"]

_Fault = Callable[[Stage, Random], Awaitable[None]]


def kill(*roles: str) -> _Fault:
    """One of each, at once; a role that is named twice, two of it."""

    async def happens(stage: Stage, random: Random) -> None:
        victims = [
            process
            for role in sorted(set(roles))
            for process in random.sample(stage.of_role(role), k=roles.count(role))
        ]
        processes.send(victims, signal.SIGKILL)

    return happens


def pause(role: str) -> _Fault:
    """For half a second to three."""

    async def happens(stage: Stage, random: Random) -> None:
        victims = [random.choice(stage.of_role(role))]
        processes.send(victims, signal.SIGSTOP)
        try:
            await asyncio.sleep(random.uniform(0.5, 3))
        finally:
            processes.send(victims, signal.SIGCONT)

    return happens


def stop(role: str) -> _Fault:
    """For good: whoever watches it must end it."""

    async def happens(stage: Stage, random: Random) -> None:
        processes.send([random.choice(stage.of_role(role))], signal.SIGSTOP)

    return happens
