"""Faults of every kind under a running application, against what no fault excuses.

`make faults` lets 200 of them happen, drawn with a fixed seed; `make test`, nine. What it reads:

- `FAULTS`, `FAULTS_SEED`: how many, and which.
- `FAULTS_FROM`: the number of the first. What came before it is not repeated; number, seed and kind say all of a fault.
- `FAULTS_KIND`: only those whose name it is in.
- `FAULTS_PATIENCE`: how many times as long all may take, where the machine does other things as well.
- `FAULTS_REPORT`: a file for the table of recovery times.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chaos.driver import Record, happen
from chaos.kinds import Draw, dealt, named
from chaos.report import page_of, progress_of
from chaos.stage import Stage

FEW = (
    "half-open connections",
    "nonsense for HTTP",
    "pause a replica",
    "streams are left",
    "full disk: replicas",
    "pipelined requests",
    "pause the proxy",
    "kill what grammars are tried in",
    "kill the ingress",
)

_START_S = 120.0


async def run(
    stage: Stage,
    draws: Sequence[Draw],
    records: list[Record],
    *,
    patience: float,
    tell: Callable[[str], object] = lambda line: None,
) -> None:
    await stage.learn_references()
    await stage.whole_within(_START_S * patience)
    await stage.check_idle()
    for draw in draws:
        records.append(await happen(stage, draw, patience=patience))
        tell(progress_of(records[-1], draws[-1].number))
        if records[-1].whole_s is None:
            break


def test_nine_faults_break_nothing(stage: Stage) -> None:
    records: list[Record] = []
    draws = [Draw(number, named(name), seed=8) for number, name in enumerate(FEW, 1)]
    asyncio.run(run(stage, draws, records, patience=4))
    assert not [violation for record in records for violation in record.violations]


@pytest.mark.long
@pytest.mark.skipif("FAULTS" not in os.environ, reason="FAULTS is not set: `make faults` sets it")
def test_many_faults_break_nothing(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    count, seed = int(os.environ["FAULTS"]), int(os.environ.get("FAULTS_SEED", "1"))
    first, wanted = int(os.environ.get("FAULTS_FROM", "1")), os.environ.get("FAULTS_KIND", "")
    patience = float(os.environ.get("FAULTS_PATIENCE", "1"))
    draws = [draw for draw in dealt(seed, count) if draw.number >= first and wanted in draw.kind.name]
    records: list[Record] = []
    with capsys.disabled():
        _tell(f"\n{len(draws)} faults of seed {seed}\n")
        try:
            asyncio.run(run(stage, draws, records, patience=patience, tell=_tell))
        finally:
            page = page_of(records, seed=seed)
            _tell(f"\n{page}\nfiles more open: {dict(stage.most_files_more)}\n")
            if "FAULTS_REPORT" in os.environ:
                Path(os.environ["FAULTS_REPORT"]).write_text(page)
    assert not [violation for record in records for violation in record.violations]


def _tell(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
