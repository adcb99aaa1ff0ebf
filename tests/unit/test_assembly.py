"""Putting a replica together."""

import pytest

from goose.policies.autoregressive import AutoregressivePolicy
from goose.policies.base import TreePolicy
from goose.policies.registry import POLICIES
from goose.sources.registry import SourceSet
from goose_ray.assembly import build_engine
from goose_ray.config import EngineConfig, GooseConfig


def test_an_engine_is_handed_over_with_every_policy_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def costly(sources: SourceSet) -> TreePolicy:
        built.append(sources)
        return AutoregressivePolicy()

    monkeypatch.setattr("goose_ray.assembly.POLICIES", {"goose": POLICIES["goose"], "costly": costly})
    engine = build_engine(GooseConfig(engine=EngineConfig(kv_cache_tokens=64)))
    try:
        assert "costly" in engine.policies
        assert len(built) == 1
    finally:
        engine.stop()
