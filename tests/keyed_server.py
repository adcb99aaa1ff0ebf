"""An HTTP app over a scripted backend that wants keys: two of them, and how tests ask with them."""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from scripted_backend import ScriptedBackend, client_of

from goose_ray.api.auth.api_key import ApiKey, hash_of, new_key
from goose_ray.api.auth.key_file import append_key
from goose_ray.api.auth.key_ring import KeyRing

__all__ = ["ALICE", "BOB", "ask", "basic", "bearer", "key_file", "standing_still"]

ALICE, BOB = new_key(), new_key()


def key_file(folder: Path, **limits: int) -> Path:
    path = folder / "keys.jsonl"
    append_key(path, ApiKey(name="alice", sha256=hash_of(ALICE), **limits))
    append_key(path, ApiKey(name="bob", sha256=hash_of(BOB)))
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


def ask(
    keys: KeyRing | None,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    backend: ScriptedBackend | None = None,
    **options: Any,
) -> httpx.Response:
    async def send() -> httpx.Response:
        async with client_of(backend or ScriptedBackend(), keys) as client:
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(send())


def standing_still() -> float:
    """A clock."""
    return 0.0
