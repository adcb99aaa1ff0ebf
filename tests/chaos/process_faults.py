"""What happens to processes: they are killed, alone or together, stop for a while, or stop for good."""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from random import Random

from chaos import processes
from chaos.stage import Stage, ViolationError

__all__ = ["kill", "kill_grammar_trials", "pause", "stop"]

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


async def kill_grammar_trials(stage: Stage, random: Random) -> None:
    """While grammars that nobody has asked for before wait for them: each is compiled none the less."""
    patterns = [f"[a-y]{{{random.randint(3, 9)}}}z{random.randrange(10**9)}" for _ in range(8)]

    async def one(pattern: str) -> None:
        body = {"model": stage.model, "prompt": "abc", "max_tokens": 40, "structured_outputs": {"regex": pattern}}
        response = await http.post("/v1/completions", json=body)
        if response.status_code != 200 or not re.fullmatch(pattern, response.json()["choices"][0]["text"]):
            raise ViolationError(f"{pattern}: {response.status_code}, {response.text}")

    async with stage.http() as http:
        asking = asyncio.gather(*(one(pattern) for pattern in patterns))
        await asyncio.sleep(random.uniform(0, 0.1))
        victims = processes.find_grammar_trials()
        processes.send(victims, signal.SIGKILL)
        await asking
    if not victims:
        raise ViolationError("there is no process that grammars are tried in")
