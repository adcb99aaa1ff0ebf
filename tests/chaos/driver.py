"""One fault after another, each while clients are being answered, and what must hold after each.

No answer is wrong, lost or doubled; every process is there and answers in time; no gauge, file or connection is left.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from chaos import traffic
from chaos.kinds import Kind
from chaos.stage import Stage, ViolationError

__all__ = ["Record", "happen", "table_of"]

_CLIENTS = 6
# A request that a stopped replica has waits until that replica is given up.
_ANSWERED_WITHIN_S = 180.0
# Who is late is waited for, this many times as long: what comes after can still be told.
_LATE = 4


@dataclass(frozen=True)
class Record:
    """Of one fault. `whole_s`: from its end until all was as before. `violations` are empty where all is well."""

    kind: Kind
    whole_s: float
    num_answers: int
    num_interrupted: int
    violations: tuple[str, ...]


async def happen(stage: Stage, kind: Kind, random: Random, *, patience: float = 1.0) -> Record:
    """`patience`: how many times slower than on an idle machine all may be.

    Raises ViolationError if the application does not recover: nothing after it would mean anything.
    """
    violations: list[str] = []
    asks = random.sample(traffic.ASKS, k=_CLIENTS)
    async with stage.http() as http:
        begun = [asyncio.Event() for _ in asks]
        sending = [
            asyncio.create_task(traffic.answer_to(http, stage.model, ask, event))
            for ask, event in zip(asks, begun, strict=True)
        ]
        # those that stream are in the middle of it, the others are somewhere
        await asyncio.gather(*(event.wait() for ask, event in zip(asks, begun, strict=True) if ask.stream))
        try:
            await kind.happen(stage, random)
        except ViolationError as error:
            violations.append(str(error))
        ended_s = time.monotonic()
        limit_s = kind.within_s * patience
        try:
            await stage.whole_within(limit_s)
        except ViolationError as error:
            violations.append(str(error))
            await stage.whole_within(_LATE * limit_s)
        whole_s = time.monotonic() - ended_s
        async with asyncio.timeout(_ANSWERED_WITHIN_S * patience):
            answers = await asyncio.gather(*sending)
    for ask, answer in zip(asks, answers, strict=True):
        if (found := stage.error_in(ask, answer, interrupted=kind.interrupts)) is not None:
            violations.append(found)
    try:
        await stage.check_idle()
    except ViolationError as error:
        violations.append(str(error))
    num_interrupted = sum(answer.end != "whole" for answer in answers)
    return Record(kind, whole_s, len(answers), num_interrupted, tuple(violations))


def table_of(records: Sequence[Record]) -> str:
    """In Markdown, by kind."""
    lines = ["| fault | times | whole again after, median | most | answers | interrupted | violations |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name in Counter(record.kind.name for record in records):
        own = [record for record in records if record.kind.name == name]
        seconds = sorted(record.whole_s for record in own)
        lines.append(
            f"| {name} | {len(own)} | {seconds[len(own) // 2]:.1f} s | {seconds[-1]:.1f} s | "
            f"{sum(record.num_answers for record in own)} | {sum(record.num_interrupted for record in own)} | "
            f"{sum(len(record.violations) for record in own)} |"
        )
    return "\n".join(lines)
