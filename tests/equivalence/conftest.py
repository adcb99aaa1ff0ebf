"""The embedded model, loaded once for all modules that ask it."""

import pytest

from goose_ray.assembly import ReplicaParts, load_parts
from goose_ray.config import EngineConfig, GooseConfig


@pytest.fixture(scope="session")
def parts() -> ReplicaParts:
    """With a fixed budget nothing is measured first, and trees are no smaller on a busy machine."""
    return load_parts(GooseConfig(engine=EngineConfig(budget=60, kv_cache_tokens=4096)))
