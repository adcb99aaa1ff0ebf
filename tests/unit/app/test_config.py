"""The deployment's configuration from YAML arguments and the environment."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from goose_ray.api.auth.api_key import hash_of
from goose_ray.config import EMBEDDED_MODEL, GooseConfig
from goose_ray.errors import ConfigError

DEPLOYMENTS = sorted((Path(__file__).resolve().parents[3] / "deployments").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _no_model_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOSE_MODEL", raising=False)


def test_without_arguments_the_embedded_model_is_served() -> None:
    config = GooseConfig.from_args({})
    assert config.model == config.model_name == EMBEDDED_MODEL


@pytest.mark.parametrize("file", [None, *DEPLOYMENTS], ids=lambda file: file.stem if file else "no file")
def test_every_deployment_speculates_unless_told_otherwise(file: Path | None) -> None:
    args = yaml.safe_load(file.read_text())["applications"][0]["args"] if file else {}
    engine = GooseConfig.from_args(args).engine
    assert (engine.policy, engine.budget) == ("anisotropic", "auto")


def test_the_environment_names_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOSE_MODEL", "org/other")
    config = GooseConfig.from_args({"model": EMBEDDED_MODEL, "engine": {"budget": 8}})
    assert (config.model, config.engine.budget) == ("org/other", 8)


def test_the_budget_may_be_automatic() -> None:
    assert GooseConfig.from_args({"engine": {"budget": "auto"}}).engine.budget == "auto"


def test_a_calibration_is_a_path() -> None:
    assert GooseConfig.from_args({"engine": {"calibration": "a.npz"}}).engine.calibration == Path("a.npz")


def test_periods_may_be_whole_numbers() -> None:
    assert GooseConfig.from_args({"report_period_s": 1}).report_period_s == 1.0


def test_the_served_name_may_differ_from_the_model() -> None:
    assert GooseConfig.from_args({"model": "org/other", "served_model_name": "duck"}).model_name == "duck"


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"modle": "x"}, "modle"),
        ({"engine": {"budget": 0}}, "engine.budget: .*or auto, not 0"),
        ({"engine": {"budget": "much"}}, "engine.budget: .*or auto, not 'much'"),
        ({"engine": {"budget": True}}, "engine.budget"),
        ({"engine": {"speed": 9}}, "engine.speed"),
        ({"engine": {"budget": 10**9}}, r"engine.budget: .*max_batch_rows \(512\) or auto, not 1000000000"),
        ({"engine": {"budget": 1e9}}, "engine.budget: .*or auto, not 1000000000.0"),
        ({"engine": {"policy": "swan"}}, "engine.policy: must be one of anisotropic, .*, suffix, not 'swan'"),
        ({"engine": {"max_running_requests": True}}, "engine.max_running_requests: .*integer, not True"),
        ({"engine": {"prefix_cache": 1}}, "engine.prefix_cache: .*boolean, not 1"),
        ({"engine": {"kv_cache_tokens": "64"}}, "engine.kv_cache_tokens: .*integer, not '64'"),
        ({"model": ""}, "model: .*, not ''"),
        ({"served_model_name": ""}, "served_model_name: .*, not ''"),
        ({"modle": "x"}, r"^modle: there is no such option; did you mean model\?$"),
        ({"engine": {"polcy": "chain"}}, r"^engine\.polcy: there is no such option; did you mean policy\?$"),
        ({"qwertyuiop": 1}, "^qwertyuiop: there is no such option$"),
        ({"engine": {"budget": -4}}, r"^engine\.budget: budget must be 1 or more nodes, or auto, not -4$"),
        ({"device": "tpu"}, "device: Input should be 'auto', 'cpu' or 'cuda', not 'tpu'"),
        ({"dtype": "int8"}, "^dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16', not 'int8'$"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"report_period_s": 0}, "report_period_s"),
        ({"report_period_s": 7, "replica_silent_after_s": 6}, "replica_silent_after_s"),
    ],
)
def test_a_wrong_field_is_named(args: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        GooseConfig.from_args(args)


@pytest.mark.parametrize(
    ("args", "num_cpus", "num_threads"),
    [
        ({}, 2, 1),
        ({}, 1, 1),
        ({}, 9, 4),
        ({"replicas_per_node": 1}, 8, 8),
        ({"engine": {"num_threads": 3}}, 8, 3),
    ],
)
def test_replicas_share_the_cpus_of_a_machine(args: dict[str, Any], num_cpus: int, num_threads: int) -> None:
    assert GooseConfig.from_args(args).on_node(num_cpus).engine.num_threads == num_threads


def test_of_the_key_in_the_environment_the_hash_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOSE_API_KEY", "a-key-that-nobody-can-guess")
    monkeypatch.setenv("GOOSE_API_KEYS_FILE", "keys.jsonl")
    config = GooseConfig.from_args({})
    assert config.api_key_sha256 == hash_of("a-key-that-nobody-can-guess")
    assert config.api_keys_file == Path("keys.jsonl")
    assert "nobody" not in repr(config)


@pytest.mark.parametrize(
    ("name", "value"), [("GOOSE_API_KEY", ""), ("GOOSE_API_KEY", "short"), ("GOOSE_API_KEYS_FILE", "")]
)
def test_a_server_that_is_to_have_keys_never_goes_without(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name) as raised:
        GooseConfig.from_args({})
    assert "short" not in str(raised.value)


def test_a_key_in_place_of_its_hash_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="api_key_sha256") as raised:
        GooseConfig.from_args({"api_key_sha256": "sk-goose-in-plain"})
    assert "in-plain" not in str(raised.value)
