"""An API key as a server knows it: whose it is, its hash and its limits. Knows no requests, and keeps no key."""

import hashlib
import secrets
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ApiKey", "hash_of", "new_key"]

_PREFIX = "sk-goose-"
# 256 bits: of so many, a fast hash without salt gives nothing away.
_NUM_BYTES = 32

Limit = Annotated[int, Field(ge=1)] | None


class ApiKey(BaseModel):
    """One line of a key file. `name` is the tenant's; several keys may have it, and count as one.

    A limit that is None is none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # So that `name:salt` has one reading.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    max_concurrent_requests: Limit = None
    requests_per_minute: Limit = None
    # of prompts and answers
    tokens_per_minute: Limit = None


def new_key() -> str:
    return _PREFIX + secrets.token_urlsafe(_NUM_BYTES)


def hash_of(key: str) -> str:
    """SHA-256 in hex. Of keys that nobody can guess; it is not for passwords."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
