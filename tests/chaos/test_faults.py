"""Faults of every kind under a running application, against what no fault excuses.

`make faults` lets 200 of them happen, drawn with a fixed seed (`FAULTS`, `FAULTS_SEED`); `make test`, eight. Where the
machine does other things as well, all may take `FAULTS_PATIENCE` times as long.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from random import Random

import pytest

from chaos.driver import Record, happen, table_of
from chaos.kinds import Kind, dealt, named
from chaos.stage import Stage

FEW = (
    "half-open connections",
    "nonsense for HTTP",
    "pause a replica",
    "streams are left",
    "full disk: replicas",
    "pipelined requests",
    "pause the proxy",
    "kill the ingress",
)

_START_S = 120.0


async def run(stage: Stage, kinds: Sequence[Kind], random: Random, records: list[Record], *, patience: float) -> None:
    await stage.learn_references()
    await stage.whole_within(_START_S * patience)
    await stage.check_idle()
    for number, kind in enumerate(kinds, 1):
        record = await happen(stage, kind, random, patience=patience)
        records.append(record)
        if len(kinds) > len(FEW):
            sys.stdout.write(
                f"{number}/{len(kinds)} {kind.name}: whole after {record.whole_s:.1f} s, "
                f"{record.num_interrupted} of {record.num_answers} interrupted {' '.join(record.violations)[:600]}\n"
            )
            sys.stdout.flush()


def test_eight_faults_break_nothing(stage: Stage) -> None:
    records: list[Record] = []
    asyncio.run(run(stage, [named(name) for name in FEW], Random(8), records, patience=4))
    assert not [violation for record in records for violation in record.violations]


@pytest.mark.long
@pytest.mark.skipif("FAULTS" not in os.environ, reason="FAULTS is not set: `make faults` sets it")
def test_many_faults_break_nothing(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random(int(os.environ.get("FAULTS_SEED", "1")))
    patience = float(os.environ.get("FAULTS_PATIENCE", "1"))
    records: list[Record] = []
    with capsys.disabled():
        try:
            asyncio.run(run(stage, dealt(random, int(os.environ["FAULTS"])), random, records, patience=patience))
        finally:
            sys.stdout.write(f"\n{table_of(records)}\n\nfiles more open: {dict(stage.most_files_more)}\n")
    assert not [violation for record in records for violation in record.violations]
