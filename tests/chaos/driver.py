"""One fault after another, each while clients are being answered, and what must hold after each.

No answer is wrong, lost or doubled; every process is there and answers in time; no gauge, file or connection is left.
"""

import asyncio
import os
import time
import traceback
from collections.abc import Awaitable
from dataclasses import dataclass, field

from chaos import processes, traffic
from chaos.kinds import Draw
from chaos.stage import Stage, ViolationError

__all__ = ["Record", "happen"]

_CLIENTS = 6
# A request that a stopped replica has waits until that replica is given up.
_ANSWERED_WITHIN_S = 180.0
# Who is late is waited for, this many times as long: what comes after can still be told.
_LATE = 4


@dataclass
class Record:
    """Of one fault. `violations` are empty where all is well."""

    draw: Draw
    # from the fault's end until all was as before; None if it never was
    whole_s: float | None = None
    # of the machine, in the minute before the fault
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    num_answers: int = 0
    num_interrupted: int = 0
    violations: list[str] = field(default_factory=list)
    # who was there before, and at each violation
    facts: list[str] = field(default_factory=list)

    async def check(self, what: Awaitable[None]) -> bool:
        """Whether it holds; what violates it is noted, and what it raises for another reason likewise."""
        try:
            await what
        except ViolationError as error:
            self.note(str(error))
            return False
        except Exception as error:
            self.note("".join(traceback.format_exception(error)[-2:]))
            return False
        return True

    def note(self, violation: str) -> None:
        self.violations.append(violation)
        self.facts.append(_now())


async def happen(stage: Stage, draw: Draw, *, patience: float = 1.0) -> Record:
    """`patience`: how many times slower than on an idle machine all may be. Where `whole_s` is None the application has
    not recovered, and nothing after it would mean anything.
    """
    kind, random = draw.kind, draw.random()
    record = Record(draw, facts=[_now()])
    asks = random.sample(traffic.ASKS, k=_CLIENTS)
    async with stage.http() as http:
        begun = [asyncio.Event() for _ in asks]
        sending = [
            asyncio.create_task(traffic.answer_to(http, stage.model, ask, event))
            for ask, event in zip(asks, begun, strict=True)
        ]
        # those that stream are in the middle of it, the others are somewhere
        await asyncio.gather(*(event.wait() for ask, event in zip(asks, begun, strict=True) if ask.stream))
        await record.check(kind.happen(stage, random))
        ended_s = time.monotonic()
        limit_s = kind.within_s * patience
        is_whole = await record.check(stage.whole_within(limit_s))
        if is_whole or await record.check(stage.whole_within(_LATE * limit_s)):
            record.whole_s = time.monotonic() - ended_s
        _, late = await asyncio.wait(sending, timeout=_ANSWERED_WITHIN_S * patience)
        for ask, task in zip(asks, sending, strict=True):
            if task in late:
                record.note(f"{ask.name}: no end of it within {_ANSWERED_WITHIN_S * patience:g} s")
                task.cancel()
        await asyncio.wait(sending)
    for ask, task in zip(asks, sending, strict=True):
        if task.cancelled():
            continue
        answer = task.result()
        record.num_answers += 1
        record.num_interrupted += answer.end != "whole"
        if (found := stage.error_in(ask, answer, interrupted=kind.interrupts)) is not None:
            record.note(found)
    if record.whole_s is not None:
        await record.check(stage.check_idle())
    return record


def _now() -> str:
    """Who is there, and what the machine has to do besides."""
    there = " ".join(f"{process.role}:{process.pid}" for process in processes.find())
    return f"{time.strftime('%H:%M:%S')} {there}; load {os.getloadavg()[0]:.1f}, {processes.free_mb():.0f} MB free"
