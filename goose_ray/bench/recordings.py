"""Recorded replies from disk, by benchmark and in the order in which every policy is to see them.

A recording's benchmark is its field `benchmark`, or else read off its file's name. Knows nothing of policies.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from goose.errors import InvalidSnapshotError
from goose.replay import Recording
from goose_ray.bench.repetition import is_repetitive
from goose_ray.errors import ConfigError

__all__ = [
    "Benchmark",
    "RecordedReply",
    "benchmark_of_name",
    "is_session",
    "read_benchmarks",
    "read_recordings",
    "replies_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedReply:
    """A recording and whether at least half of its reply's 4-grams are copied."""

    recording: Recording
    repetitive: bool


@dataclass(frozen=True, slots=True, eq=False)
class Benchmark:
    """Replies to one kind of prompt. Of *sessions* the replies of a conversation follow one another, as recorded."""

    name: str
    replies: tuple[RecordedReply, ...]

    @property
    def is_session(self) -> bool:
        return is_session(self.name)


def is_session(benchmark: str) -> bool:
    """Benchmarks of recorded conversations are told by their name: agentic_sessions, support_sessions."""
    return "sessions" in re.split(r"[^a-z]+", benchmark.lower())


def benchmark_of_name(stem: str) -> str:
    """`gsm8k_chat__0` -> `gsm8k_chat`; `spec_bench_rag_spec_bench_492` -> `spec_bench_rag`; `mine_7` -> `mine`.

    What stands before `__`; else before the id, which begins where a word occurs for the second time or else is the
    numbers at the end.
    """
    if "__" in stem:
        return stem.split("__", 1)[0]
    words = stem.split("_")
    lowered = [word.lower() for word in words]
    repeated = next((place for place, word in enumerate(lowered) if word in lowered[:place]), None)
    if repeated is not None:
        return "_".join(words[:repeated])
    return re.sub(r"(_\d+)+$", "", stem)


def read_recordings(paths: Sequence[Path]) -> list[tuple[Path, Recording]]:
    """Files, and all `.npz` files of folders, in natural order. Raises ConfigError naming the path at fault."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.npz"), key=_natural) if path.is_dir() else [path]
        if not found:
            raise ConfigError(f"recordings: {path} holds no .npz file; `goose record --out {path}` writes some")
        files += found
    for file in files:
        _refuse_other_files(file)
    try:
        return [(file, Recording.load(file)) for file in dict.fromkeys(files)]
    except InvalidSnapshotError as error:
        raise ConfigError(f"recordings: {error}") from error


def read_benchmarks(paths: Sequence[Path], *, seed: int) -> list[Benchmark]:
    """Benchmarks in order of their names; replies in an order drawn from `seed`, those of sessions as recorded.

    Where two folders hold a recording of one name, benchmarks are named `<folder>/<benchmark>`.
    """
    recordings = read_recordings(paths)
    clash = max(Counter(path.stem for path, _ in recordings).values()) > 1
    groups: dict[str, list[Recording]] = {}
    for path, recording in recordings:
        name = recording.benchmark or benchmark_of_name(recording.name)
        groups.setdefault(f"{path.parent.name}/{name}" if clash else name, []).append(recording)
    return [_benchmark(name, groups[name], seed) for name in sorted(groups)]


def replies_of(benchmarks: Sequence[Benchmark], prefixes: Sequence[str], option: str) -> list[Recording]:
    """Of the benchmarks whose names begin so. Raises ConfigError, naming the option, if there are none."""
    found = [reply.recording for one in benchmarks if one.name.startswith(tuple(prefixes)) for reply in one.replies]
    if not found:
        names = ", ".join(one.name for one in benchmarks)
        raise ConfigError(f"{option}: no benchmark begins with {' or '.join(prefixes)}; there are: {names}")
    return found


def _refuse_other_files(path: Path) -> None:
    """Of what numpy takes for a pickle it would say how to load it all the same, which nobody should."""
    try:
        with path.open("rb") as file:
            begins = file.read(6)
    except OSError:
        # who loads it says which
        return
    if not begins.startswith((b"PK", b"\x93NUMPY")):
        raise ConfigError(
            f"recordings: {path} is no .npz file. If it holds prompts, record a model's replies to them first: "
            f"`goose record --prompts {path} --out FOLDER`"
        )


def _benchmark(name: str, recordings: Sequence[Recording], seed: int) -> Benchmark:
    order: Iterable[int] = range(len(recordings))
    if not is_session(name):
        order = np.random.default_rng(seed).permutation(len(recordings)).tolist()
    return Benchmark(name, tuple(_reply(recordings[place]) for place in order))


def _reply(recording: Recording) -> RecordedReply:
    prompt, output = recording.prompt_ids.tolist(), recording.output_ids.tolist()
    return RecordedReply(recording, is_repetitive(prompt, output))


def _natural(path: Path) -> list[int | str]:
    """Numbers in a name count as numbers: turn 10 comes after turn 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]
