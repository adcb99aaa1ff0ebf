"""Directories of converted models, each written once and never seen half-written.

A directory is filled in a staging place beside its final one and renamed when whole, with a marker file that names the
recipe, the source and every file. Knows nothing about what is in the files.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from goose_ray.errors import ModelLoadError

__all__ = ["MARKER_NAME", "Marker", "ModelStore", "sha256_of"]

MARKER_NAME = "goose.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Marker:
    """What a finished directory holds. `sizes` maps file name to bytes, `weights_sha256` is of the weights file."""

    recipe: int
    source_sha256: str
    weights_sha256: str
    sizes: dict[str, int]

    @classmethod
    def read(cls, directory: Path) -> "Marker | None":
        """None unless the directory has a marker and every file the marker names, at its size."""
        try:
            marker = cls(**json.loads((directory / MARKER_NAME).read_text(encoding="utf-8")))
            intact = all((directory / name).stat().st_size == size for name, size in marker.sizes.items())
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return marker if intact else None


class ModelStore:
    """The converted models below one root. Safe between processes: one builds, the others wait and find it built."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str, recipe: int) -> Path:
        """Where a model converted by `recipe` lives. Recipes do not share a place: versions of goose never fight."""
        return self.root / f"{name}-r{recipe}"

    def find(self, name: str, recipe: int) -> Path | None:
        """The finished directory, or None if it is absent, damaged or of another recipe. Reads only the marker."""
        path = self.path(name, recipe)
        marker = Marker.read(path)
        return path if marker is not None and marker.recipe == recipe else None

    def directories(self) -> list[Path]:
        """The finished directories of any recipe, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if Marker.read(path) is not None)

    def build(self, name: str, recipe: int, *, needed_bytes: int, fill: Callable[[Path], str]) -> Path:
        """The finished directory, made by `fill` if it is not there.

        `fill(directory)` writes the files and returns the sha256 of their source; the directory is on the
        filesystem of the final place, and whatever else it holds in sub-directories is dropped. Raises ModelLoadError
        if the disk is full or the cache cannot be written; nothing is left behind then, nor if `fill` raises.
        """
        with _disk_errors_named(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with FileLock(self.root / f".{name}-r{recipe}.lock"):
                found = self.find(name, recipe)
                if found is not None:
                    return found
                return self._build_locked(name, recipe, needed_bytes=needed_bytes, fill=fill)

    def _build_locked(self, name: str, recipe: int, *, needed_bytes: int, fill: Callable[[Path], str]) -> Path:
        final = self.path(name, recipe)
        staging = self.root / f".{final.name}.staging"
        # One of an earlier build that was killed; the lock says nobody else's.
        shutil.rmtree(staging, ignore_errors=True)
        free = shutil.disk_usage(self.root).free
        if free < needed_bytes:
            raise OSError(errno.ENOSPC, f"{needed_bytes >> 20} MiB needed, {free >> 20} MiB free")
        staging.mkdir()
        try:
            source_sha256 = fill(staging)
            _drop_directories(staging)
            _write_marker(staging, recipe, source_sha256)
            if final.exists():  # damaged, else `find` had found it
                shutil.rmtree(final)
            os.rename(staging, final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return final


def sha256_of(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _disk_errors_named(root: Path) -> Iterator[None]:
    """Turns what the filesystem says into a ModelLoadError that names the cache and the remedy."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
        raise ModelLoadError(
            f"the model cache {root} cannot be written: {reason}. "
            "Make room there, or set GOOSE_CACHE to a directory with space and write permission."
        ) from error


def _drop_directories(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)


def _write_marker(directory: Path, recipe: int, source_sha256: str) -> None:
    files = sorted(directory.iterdir())
    for entry in files:
        entry.chmod(0o644)  # safetensors writes for its owner alone
        # The marker must not reach the disk before what it vouches for.
        with entry.open("rb") as file:
            os.fsync(file.fileno())
    weights = hashlib.sha256()
    for entry in files:
        if entry.suffix == ".safetensors":
            weights.update(sha256_of(entry).encode())
    marker = Marker(
        recipe=recipe,
        source_sha256=source_sha256,
        weights_sha256=weights.hexdigest(),
        sizes={entry.name: entry.stat().st_size for entry in files},
    )
    text = json.dumps(asdict(marker), indent=2) + "\n"
    with (directory / MARKER_NAME).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
