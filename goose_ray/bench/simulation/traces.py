"""Traces of production traffic: when requests came, and how long prompts and answers were.

Reads the Azure LLM inference traces (CSV) and Mooncake's (JSON lines). Knows nothing of texts: there are none in them.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose_ray.errors import ConfigError

__all__ = ["Trace", "read_trace"]

# Copies of an arrival come within so many seconds of it, so that bursts stay bursts.
_SPREAD_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival, one entry each."""

    # [num_requests] float64, seconds since the first
    arrivals_s: NDArray[np.float64]
    # [num_requests] int64
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrivals_s)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self) / max(float(self.arrivals_s[-1]), 1e-9)

    def scaled(self, rate: float, seconds: float, rng: np.random.Generator) -> "Trace":
        """The same traffic at `rate` requests a second for so long: each request as often as that takes, or by chance
        left out, the whole begun anew where it ends.
        """
        period_s = float(self.arrivals_s[-1]) + 1 / self.rate
        laps = np.arange(int(seconds // period_s) + 1) * period_s
        wanted = rate / self.rate
        copies = int(wanted) + (rng.random((len(laps), len(self))) < wanted % 1)
        which = np.tile(np.arange(len(self)), len(laps)).repeat(copies.ravel())
        arrivals_s = (laps[:, None] + self.arrivals_s).ravel().repeat(copies.ravel())
        arrivals_s += rng.uniform(0, _SPREAD_S, len(arrivals_s))
        order = np.argsort(arrivals_s, kind="stable")
        order = order[arrivals_s[order] < seconds]
        return Trace(arrivals_s[order], self.prompt_tokens[which[order]], self.output_tokens[which[order]])


def read_trace(path: Path) -> Trace:
    """Raises ConfigError naming the file and what a trace looks like."""
    try:
        rows = sorted(_mooncake(path) if path.suffix == ".jsonl" else _azure(path))
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"trace: {path} must be .csv with TIMESTAMP, ContextTokens and GeneratedTokens, or .jsonl with timestamp, "
            f"input_length and output_length: {error!r}"
        ) from error
    if len(rows) < 2 or rows[0][0] == rows[-1][0]:
        raise ConfigError(f"trace: {path} must hold requests of different times")
    columns = np.array(rows, dtype=np.float64).T
    prompt, output = (np.maximum(1, column).astype(np.int64) for column in columns[1:])
    return Trace(columns[0] - columns[0][0], prompt, output)


def _azure(path: Path) -> Iterable[tuple[float, int, int]]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            # Seven decimals of a second, where Python reads six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield at, int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _mooncake(path: Path) -> Iterable[tuple[float, int, int]]:
    with path.open() as file:
        for line in file:
            row: dict[str, Any] = json.loads(line)
            yield row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"])
