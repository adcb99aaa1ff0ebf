"""The machine: its cache directory, model, and memory for weights and KV pool."""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goose_ray.cli.checks.finding import Finding, Verdict
from goose_ray.config import EMBEDDED_MODEL, GooseConfig, cache_dir

__all__ = [
    "check_cache",
    "check_keys",
    "check_memory",
    "check_model",
    "check_shared_memory",
    "check_snapshot",
]

# of the embedded model, with room to convert it
_CACHE_BYTES = 1 << 30
# What Ray's object store should have: Docker gives 64 MB unless told otherwise.
_SHARED_MEMORY_BYTES = 1 << 30
# of a replica beside its model: Python, torch, Ray, tables
_REPLICA_BYTES = 1 << 30
_FIRST_GPU = "the first GPU"
# tokens: what `engine.kv_cache_tokens` must have
_LEAST_POOL = 64


def check_cache() -> Finding:
    """The directory of converted models: writable, with room for the embedded one."""
    directory = cache_dir()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = f"make {existing} writable, or name another directory in GOOSE_CACHE"
        return Finding("cache", Verdict.FAIL, f"{directory} cannot be written", remedy)
    free = shutil.disk_usage(existing).free
    if free < _CACHE_BYTES:
        remedy = "make room, or name another directory in GOOSE_CACHE"
        return Finding("cache", Verdict.WARN, f"{directory}, {_gib(free)} free", remedy)
    return Finding("cache", Verdict.OK, f"{directory}, {_gib(free)} free")


def check_model(config: GooseConfig) -> Finding:
    from goose_ray.assembly import check_model_fits
    from goose_ray.errors import ConfigError, ModelLoadError
    from goose_ray.models.loader import find

    try:
        check_model_fits(config)
    except ModelLoadError as error:
        return Finding("model", Verdict.FAIL, str(error), "see `goose model pull --help`")
    except ConfigError as error:
        return Finding("model", Verdict.FAIL, str(error), "change the deployment, or take another model")
    directory = find(config.model)
    if directory is None:
        command = "goose model pull" + ("" if config.model == EMBEDDED_MODEL else f" {config.model}")
        remedy = f"{command}; else it is fetched when a server starts"
        return Finding("model", Verdict.WARN, f"{config.model} is not here yet", remedy)
    return Finding("model", Verdict.OK, f"{config.model} in {directory}")


def check_keys(path: Path) -> Finding:
    from goose_ray.api.auth.key_file import read_keys
    from goose_ray.errors import ConfigError

    try:
        keys = read_keys(path)
    except ConfigError as error:
        return Finding("API keys", Verdict.FAIL, str(error), "`goose keys new` makes such a file")
    return Finding("API keys", Verdict.OK, f"{len(keys)} in {path}")


def check_snapshot(uri: str) -> Finding:
    """Where the aggregator is to keep its memory."""
    from goose_ray.telemetry.snapshot_file import SnapshotError, SnapshotFile

    try:
        SnapshotFile(uri).check()
    except SnapshotError as error:
        remedy = "name another place in aggregator_snapshot: a file or none yet, in a folder that can be written"
        return Finding("snapshot", Verdict.FAIL, str(error), remedy)
    return Finding("snapshot", Verdict.OK, uri)


def check_memory(config: GooseConfig) -> Finding:
    """Weights and KV of one replica against what is free here, or of one rank's against what is on the first GPU."""
    directory = _directory(config)
    numbers = None if directory is None else _read_config(directory)
    if directory is None or numbers is None:
        return Finding("memory", Verdict.WARN, f"unknown: {config.model} is not here, or its config cannot be read")
    ranks = config.tensor_parallel_size
    free, where, itemsize = _free(config)
    together = 1 if where == _FIRST_GPU else ranks
    per_token = _kv_bytes_per_token(numbers, itemsize)
    weights = sum(math.prod(shape) for shape in _shapes(directory)) * itemsize
    pool = (config.engine.kv_cache_tokens + 1) * per_token
    needed = together * ((weights + pool) // ranks + _REPLICA_BYTES)
    parts = f"{_gib(pool)} of KV, {_gib(weights)} of weights" + (f", {ranks} ranks" if ranks > 1 else "")
    who = "a replica" if together == ranks else "a rank"
    found = f"{who} takes {_gib(needed)} ({parts}); {where} has {_gib(free)} free"
    if needed <= free:
        return Finding("memory", Verdict.OK, found)
    fitting = max(0, free // together - _REPLICA_BYTES - weights // ranks) * ranks
    tokens = fitting // per_token
    remedy = (
        f"engine.kv_cache_tokens of at most {tokens}" if tokens >= _LEAST_POOL else "a smaller model, or more ranks"
    )
    return Finding("memory", Verdict.FAIL, found, remedy)


def check_shared_memory() -> Finding:
    """Ray's object store is in /dev/shm, and so are the reductions of ranks on the CPU."""
    try:
        total = shutil.disk_usage("/dev/shm").total
    except OSError:
        return Finding("/dev/shm", Verdict.WARN, "not there", "Ray then keeps objects in files, which is slower")
    if total < _SHARED_MEMORY_BYTES:
        return Finding("/dev/shm", Verdict.WARN, f"{_gib(total)}", "in a container: docker run --shm-size=2g")
    return Finding("/dev/shm", Verdict.OK, f"{_gib(total)}")


def _directory(config: GooseConfig) -> Path | None:
    from goose_ray.errors import ModelLoadError
    from goose_ray.models.loader import find

    try:
        return find(config.model)
    except ModelLoadError:
        return None


def _read_config(directory: Path) -> dict[str, Any] | None:
    try:
        numbers: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    numbers = numbers.get("text_config", numbers)
    return numbers if {"num_hidden_layers", "num_attention_heads", "hidden_size"} <= numbers.keys() else None


def _kv_bytes_per_token(numbers: Mapping[str, Any], itemsize: int) -> int:
    heads = numbers["num_attention_heads"]
    kv_heads = numbers.get("num_key_value_heads") or heads
    head_dim = numbers.get("head_dim") or numbers["hidden_size"] // heads
    return int(numbers["num_hidden_layers"] * 2 * kv_heads * head_dim * itemsize)


def _shapes(directory: Path) -> list[list[int]]:
    """Of all tensors, from the headers of the safetensors files."""
    found: list[list[int]] = []
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        found += [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    return found


def _free(config: GooseConfig) -> tuple[int, str, int]:
    """Bytes, of what, and the size of a number there."""
    import torch

    on_gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    by_default = "bfloat16" if on_gpu else "float32"
    itemsize = getattr(torch, by_default if config.dtype == "auto" else config.dtype).itemsize
    if on_gpu and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0]), _FIRST_GPU, itemsize
    return _available_memory(), "this machine", itemsize


def _available_memory() -> int:
    """What the kernel would give without swapping, or what is left of this container's limit if that is less."""
    available = _numbers(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    control_group = Path("/sys/fs/cgroup")
    try:
        limit = int((control_group / "memory.max").read_text())
        used = int((control_group / "memory.current").read_text())
        # pages of files that would be let go
        used -= _numbers(control_group / "memory.stat")["inactive_file"]
    except (OSError, ValueError):
        # not in a group of its own, or no limit ("max")
        return available
    return max(0, min(available, limit - used))


def _numbers(table: Path) -> dict[str, int]:
    """The first number of each line by the line's first word."""
    return {words[0]: int(words[1]) for line in table.read_text().splitlines() if len(words := line.split()) > 1}


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
