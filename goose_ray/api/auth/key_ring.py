"""Which key was presented, if any: those of the key file, read again when it changes, and the one of the environment.

Knows nothing of HTTP and of limits.
"""

import hmac
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from goose_ray.api.auth.api_key import ApiKey, hash_of
from goose_ray.api.auth.key_file import read_keys
from goose_ray.errors import ConfigError

__all__ = ["KeyRing"]

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0
# of the key that the environment names
_NAME = "default"

_Version = tuple[int, int, int]


class KeyRing:
    """`sha256` is the hash of a key without limits. Raises ConfigError if `path` is no file of keys.

    A file that breaks or disappears later leaves the keys as they were, and a line in the log.
    """

    def __init__(
        self, path: Path | None, sha256: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self.clock = clock
        self._fixed = () if sha256 is None else (ApiKey(name=_NAME, sha256=sha256),)
        self._version = self._version_of_file()
        self._of_file = () if path is None else read_keys(path)
        self._looked_at = clock()

    def find(self, presented: str) -> ApiKey | None:
        """Compares with all keys, in a time that tells nothing of them."""
        self._look()
        digest = hash_of(presented)
        found = None
        for key in (*self._of_file, *self._fixed):
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def _look(self) -> None:
        now = self.clock()
        if self._path is None or now - self._looked_at < _LOOK_AGAIN_S:
            return
        self._looked_at = now
        version = self._version_of_file()
        if version == self._version:
            return
        self._version = version
        try:
            self._of_file = read_keys(self._path)
        except ConfigError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("%s has changed: %d API keys", self._path, len(self._of_file))

    def _version_of_file(self) -> _Version | None:
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
