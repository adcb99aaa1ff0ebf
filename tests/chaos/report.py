"""What is told of faults: a line for each, all that helps to find the reason of a violation, and a table by kind."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median

from chaos.driver import Record

__all__ = ["page_of", "progress_of"]


def progress_of(record: Record, last: int) -> str:
    """A line; behind a violation, several."""
    draw = record.draw
    whole = "never whole again" if record.whole_s is None else f"whole after {record.whole_s:.1f} s"
    interrupted = f"{record.num_interrupted} of {record.num_answers} interrupted"
    lines = [f"{draw.number}/{last} {draw.kind.name}: {whole}, {interrupted}, load {record.load:.1f}"]
    if record.violations:
        lines += [f"  violation: {violation[:1000]}" for violation in record.violations]
        lines += [f"  {fact}" for fact in record.facts]
        again = f"FAULTS={last} FAULTS_SEED={draw.seed} FAULTS_FROM={draw.number}"
        lines.append(f"  from here on again: {again} make faults")
    return "\n".join(lines) + "\n"


def page_of(records: Sequence[Record], *, seed: int) -> str:
    """In Markdown: a line on the run, and the table. Ends with a line end."""
    loads = [record.load for record in records] or [0.0]
    numbers = f"{records[0].draw.number} to {records[-1].draw.number}" if records else "none"
    run = (
        f"Faults {numbers} of seed {seed}, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores whose load was "
        f"{median(loads):.1f} in the median and {max(loads):.1f} at most: "
        f"{sum(record.num_answers for record in records)} answers, "
        f"{sum(len(record.violations) for record in records)} violations."
    )
    lines = ["| fault | times | whole again after, median | worst | answers | interrupted | violations |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name in sorted(Counter(record.draw.kind.name for record in records)):
        own = [record for record in records if record.draw.kind.name == name]
        seconds = [record.whole_s for record in own if record.whole_s is not None]
        middle, worst = (f"{median(seconds):.1f} s", f"{max(seconds):.1f} s") if seconds else ("never", "never")
        lines.append(
            f"| {name} | {len(own)} | {middle} | {worst if len(seconds) == len(own) else 'never'} | "
            f"{sum(record.num_answers for record in own)} | {sum(record.num_interrupted for record in own)} | "
            f"{sum(len(record.violations) for record in own)} |"
        )
    return "\n".join([run, "", *lines]) + "\n"
