"""Where the aggregator's memory outlives it: gzipped JSON at a local path or any URI that fsspec knows.

Replaced as a whole, so a reader finds the last one or none. Knows nothing of what is in it.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import fsspec

from goose_ray.errors import GooseRayError

__all__ = ["SnapshotError", "SnapshotFile"]


class SnapshotError(GooseRayError):
    """The snapshot cannot be written or read."""


class SnapshotFile:
    def __init__(self, uri: str) -> None:
        self._uri = uri

    def write(self, data: dict[str, Any]) -> None:
        """Raises SnapshotError."""
        packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), compresslevel=1)
        try:
            files, path = fsspec.core.url_to_fs(self._uri)
            files.makedirs(files._parent(path), exist_ok=True)
            files.pipe_file(f"{path}.new", packed)
            files.mv(f"{path}.new", path)
        except Exception as error:
            # file systems raise what they like
            raise SnapshotError(f"aggregator_snapshot {self._uri} cannot be written: {error}") from error

    def read(self) -> dict[str, Any] | None:
        """None if there is none yet. Raises SnapshotError."""
        try:
            files, path = fsspec.core.url_to_fs(self._uri)
            if not files.exists(path):
                return None
            data: dict[str, Any] = json.loads(gzip.decompress(files.cat_file(path)))
        except Exception as error:
            raise SnapshotError(f"aggregator_snapshot {self._uri} cannot be read: {error}") from error
        return data

    def check(self) -> None:
        """Changes nothing. Raises SnapshotError for a place that cannot be reached or, where it is a path of this
        machine, written to; and for one where something else is, which would be replaced.
        """
        self.read()
        files, path = fsspec.core.url_to_fs(self._uri)
        if "file" not in files.protocol:
            return
        folder = next(parent for parent in Path(path).parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise SnapshotError(f"aggregator_snapshot {self._uri} cannot be written: {folder} is no folder to write to")
