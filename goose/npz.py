"""Writes `.npz` files, and reads such as may be missing, broken or something else altogether."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.errors import InvalidSnapshotError

__all__ = ["read_arrays", "write_arrays"]


def read_arrays(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of these names, optional ones where they are there.

    Raises InvalidSnapshotError naming the path and what is wrong with it. Never unpickles.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InvalidSnapshotError(f"{path} holds one array, not an archive with {', '.join(required)}")
        with file:
            missing = [name for name in required if name not in file]
            if missing:
                found = ", ".join(sorted(file)) or "none"
                raise InvalidSnapshotError(f"{path} lacks the arrays {', '.join(missing)}; it holds: {found}")
            return {name: file[name] for name in (*required, *optional) if name in file}
    except OSError as error:
        raise InvalidSnapshotError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        # InvalidSnapshotError is a ValueError too, and says already what is wrong.
        if isinstance(error, InvalidSnapshotError):
            raise
        raise InvalidSnapshotError(f"{path} is no .npz file: {error}") from error


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Compressed; replaces the file."""
    np.savez_compressed(path, **dict(arrays))
