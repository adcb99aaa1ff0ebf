"""Putting a replica together."""

import logging

import pytest

from goose.policies.autoregressive import AutoregressivePolicy
from goose.policies.base import TreePolicy
from goose.policies.registry import POLICIES
from goose.sources.registry import SourceSet
from goose_ray.app import build_app
from goose_ray.assembly import build_engine, check_model_fits
from goose_ray.config import EngineConfig, GooseConfig
from goose_ray.errors import ConfigError, ModelLoadError
from goose_ray.models.loader import resolve


def test_an_engine_is_handed_over_with_every_policy_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def costly(sources: SourceSet) -> TreePolicy:
        built.append(sources)
        return AutoregressivePolicy()

    monkeypatch.setattr("goose_ray.assembly.POLICIES", {"goose": POLICIES["goose"], "costly": costly})
    engine = build_engine(
        GooseConfig(engine=EngineConfig(policy="goose", budget=8, kv_cache_tokens=64, calibration="none"))
    )
    try:
        assert "costly" in engine.policies
        assert len(built) == 1
    finally:
        engine.stop()


def test_what_takes_long_is_told_before_it_is_begun(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    def costly(sources: SourceSet) -> TreePolicy:
        told.extend(caplog.messages)
        return AutoregressivePolicy()

    monkeypatch.setattr("goose_ray.assembly.POLICIES", {"goose": costly})
    config = GooseConfig(model="no-such", engine=EngineConfig(policy="goose", calibration="none"))
    with caplog.at_level(logging.INFO, "goose_ray.assembly"), pytest.raises(ModelLoadError):
        build_engine(config)
    assert told == ["preparing the policy goose: compiled at the first start on a machine"]


def test_a_context_that_the_model_does_not_have_is_refused_before_a_replica_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOOSE_MODEL", raising=False)
    resolve("smollm2-135m-instruct")
    with pytest.raises(ConfigError, match=r"engine.max_model_len must be at most 8192 \(.*\), not 8193"):
        build_app({"engine": {"max_model_len": 8193}})
    build_app({"engine": {"max_model_len": 8192}})


def test_a_model_that_is_not_here_yet_is_left_to_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOSE_MODEL", raising=False)
    build_app({"model": "no-such/model", "engine": {"max_model_len": 10**9}})


@pytest.mark.parametrize("name", ["smollm2-135m-instuct", "model.gguf"])
def test_a_name_that_is_no_models_is_refused_before_there_is_a_replica(name: str) -> None:
    with pytest.raises(ModelLoadError, match=f"there is no model '{name}': give"):
        check_model_fits(GooseConfig(model=name))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "/models/on/another/machine"])
def test_a_model_that_may_lie_elsewhere_is_the_replicas_business(name: str) -> None:
    check_model_fits(GooseConfig(model=name))
