"""The file of API keys: one JSON object a line, each an `ApiKey`. Empty lines and lines that begin with # are left out.

Knows nothing of who presents a key.
"""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from goose_ray.api.auth.api_key import ApiKey
from goose_ray.errors import ConfigError

__all__ = ["append_key", "read_keys", "revoke_keys"]

_OWNER_ALONE = 0o600


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Raises ConfigError naming the line if one is no key, or if there is no file or no key in it."""
    keys = tuple(key for key in _parsed(path) if key is not None)
    if not keys:
        raise ConfigError(f"api_keys_file: {path} has no key; make one with `goose keys new`")
    return keys


def append_key(path: Path, key: ApiKey) -> None:
    """Makes the file, for its owner alone, if there is none. Raises ConfigError if it is no file of keys, or if there
    is no folder for it: a mistyped path would leave a key that no server reads.
    """
    if path.exists():
        _parsed(path)
    elif not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for {path.name}: make it first (`mkdir -p {path.parent}`)")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, _OWNER_ALONE)
        with open(descriptor, "rb+") as file:
            line = key.model_dump_json(exclude_none=True).encode() + b"\n"
            # by an editor that leaves the last line open
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            file.write(line)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def revoke_keys(path: Path, name: str) -> int:
    """Takes the keys of that name out and says how many there were. The file is replaced whole."""
    lines = _lines(path)
    kept = [line for line, key in zip(lines, _parsed(path), strict=True) if key is None or key.name != name]
    if len(kept) < len(lines):
        _replace(path, kept)
    return len(lines) - len(kept)


def _replace(path: Path, lines: Sequence[str]) -> None:
    # of a link, what it leads to
    path = path.resolve()
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
            os.chmod(temporary, path.stat().st_mode & 0o777)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_keys_file: {path} cannot be read: {error}") from error


def _parsed(path: Path) -> list[ApiKey | None]:
    """One entry a line, None for those that hold no key."""
    keys: list[ApiKey | None] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            keys.append(None)
            continue
        try:
            keys.append(ApiKey.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            # Not what stands there: it may be a key that somebody wrote in plain.
            if not field:
                raise ConfigError(
                    f"api_keys_file: {path}, line {number} is no JSON object; `goose keys new` writes such lines"
                ) from None
            raise ConfigError(f"api_keys_file: {path}, line {number}: {field}: {first['msg']}") from None
    return keys
