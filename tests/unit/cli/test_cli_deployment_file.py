"""Files of deployments: those that come along, and what is refused in one before Serve sees it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import (
    ServeDeploySchema,
)
from serve_command import DEPLOYMENTS, args_of, goose_server, printed, serve

from goose_ray.config import GooseConfig

SERVER = ("applications", 0, "deployments", 0)


def changed(folder: Path, path: tuple[str | int, ...], value: object) -> Path:
    """A file like the one that comes along, with another value at a place in it."""
    document = printed()
    part: Any = document
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.mark.parametrize("name", sorted(path.stem for path in DEPLOYMENTS.glob("*.yaml")))
def test_every_deployment_is_served_by_name(name: str) -> None:
    document = printed("--config", name)
    assert document == yaml.safe_load((DEPLOYMENTS / f"{name}.yaml").read_text())
    ServeDeploySchema.model_validate(document)
    GooseConfig.from_args(args_of(document))


def test_targets_of_autoscaling_that_cannot_be_are_named_before_serve_s_controller_meets_them(tmp_path: Path) -> None:
    document = printed()
    goose_server(document)["autoscaling_config"]["policy"]["policy_kwargs"]["target_utilization"] = 0
    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(document))
    result = serve("--config", path, "--print-config")
    assert result.exit_code == 1
    assert "autoscaling_config.policy.policy_kwargs: target_utilization must be above 0, not 0" in result.stderr


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("http_options", "port"), "abc", "http_options.port: must be a number from 1 to 65535, not 'abc'"),
        (("http_options", "port"), 70000, "http_options.port: must be a number from 1 to 65535, not 70000"),
        (("http_options",), 8000, "http_options: must be a mapping, not 8000"),
        (("proxy_locaton",), "HeadOnly", "Error: proxy_locaton: there is no such option; did you mean proxy_location?"),
        (
            ("applications", 0, "route_prefx"),
            "/llm",
            "applications.route_prefx: there is no such option; did you mean route_prefix?",
        ),
        (("http_options", "prot"), 8001, "http_options.prot: there is no such option; did you mean port?"),
        (
            (*SERVER, "num_replica"),
            2,
            "deployments.GooseServer.num_replica: there is no such option; did you mean num_replicas?",
        ),
        (
            (*SERVER, "autoscaling_config", "max_replica"),
            9,
            "GooseServer.autoscaling_config.max_replica: there is no such option; did you mean max_replicas?",
        ),
        (
            (*SERVER, "ray_actor_options", "gpus"),
            1,
            "GooseServer.ray_actor_options.gpus: there is no such option; did you mean num_gpus?",
        ),
        (("applications", 0, "args"), [1], "args: must be a mapping, not a list"),
        (("applications", 0, "args"), [], "args: must be a mapping, not a list"),
        (("applications", 0, "args", "engine"), [], "engine: must be a mapping, not a list"),
        (("http_options",), False, "http_options: must be a mapping, not False"),
        ((*SERVER, "autoscaling_config"), [], "autoscaling_config: must be a mapping, not a list"),
        (("applications", 0, "deployments"), {}, "deployments: must be a list, not a mapping"),
        (
            (*SERVER, "name"),
            "GoosServer",
            "must have as name GooseServer or OpenAIIngress, not 'GoosServer'; did you mean GooseServer?",
        ),
        (("applications", 0, "deployments"), ["GooseServer"], "must have as name GooseServer or OpenAIIngress, not"),
        (("applications", 0, "deployments"), "x", "deployments: must be a list, not 'x'"),
        (
            ("applications", 0, "deployments", 1, "num_replicas"),
            0,
            "deployments.OpenAIIngress.num_replicas: Input should be greater than 0, not 0",
        ),
        (
            (*SERVER, "num_replicas"),
            2,
            "deployments.GooseServer: Manually setting num_replicas is not allowed when autoscaling_config is provided",
        ),
        (
            (*SERVER, "autoscaling_config", "max_replicas"),
            0,
            "deployments.GooseServer.autoscaling_config.max_replicas: Input should be greater than 0, not 0",
        ),
        (
            (*SERVER, "autoscaling_config", "min_replicas"),
            3,
            "deployments.GooseServer.autoscaling_config: max_replicas (2) must be greater than or equal to min_rep",
        ),
        (
            (*SERVER, "autoscaling_config", "policy", "policy_function"),
            "goose_ray.scaling.policy:CapacityPolcy",
            "autoscaling_config.policy.policy_function: ours is goose_ray.scaling.policy:CapacityPolicy, not",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "policy", "policy_kwargs"),
            {"target_wait_s": 10**400},
            "GooseServer.autoscaling_config.policy.policy_kwargs: target_wait_s must be above 0, not 1000",
        ),
        (
            ("applications", 0, "deployments", 1, "autoscaling_config"),
            {"policy": {"policy_function": "goose_ray.scaling.policy:CapacityPolcy"}},
            "OpenAIIngress.autoscaling_config.policy.policy_function: ours is goose_ray.scaling.policy:CapacityPolicy",
        ),
        (
            (*SERVER, "autoscaling_config", "policy", "policy_function"),
            5,
            "GooseServer.autoscaling_config.policy.policy_function: Input should be a valid string, not 5",
        ),
        (
            (*SERVER, "autoscaling_config", "policy", "policy_function"),
            None,
            "GooseServer.autoscaling_config.policy.policy_function: Input should be a valid string, not None",
        ),
        (
            (*SERVER, "request_router_config"),
            {"request_router_class": "x:y", "max_backoff_s": -1},
            "GooseServer.request_router_config.max_backoff_s: Input should be greater than 0, not -1",
        ),
        (
            (*SERVER, "request_router_config"),
            {"request_router_class": ["x:y"]},
            "GooseServer.request_router_config.request_router_class: Input should be a valid string, not",
        ),
        (
            (*SERVER, "ray_actor_options", "runtime_env"),
            {"working_dir": 5},
            "deployments.GooseServer: path_or_uri must be a string",
        ),
        (
            (*SERVER, "backpressure_config", "status_cod"),
            429,
            "deployments.GooseServer.backpressure_config.status_cod: there is no such option",
        ),
        (
            (*SERVER, "autoscaling_config", "policy", "policy_func"),
            "x:y",
            "GooseServer.autoscaling_config.policy.policy_func: there is no such option; did you mean policy_function?",
        ),
        (
            (*SERVER, "request_router_config"),
            {"router_class": "x:y"},
            "request_router_config.router_class: there is no such option; did you mean request_router_class?",
        ),
        (("grpc_options",), {"prt": 9000}, "grpc_options.prt: there is no such option; did you mean port?"),
        (("applications", 0, "route_prefix"), "llm", "applications.route_prefix: must begin with /, not 'llm'"),
        (
            ("applications", 0, "deployments", 1, "name"),
            "GooseServer",
            "deployments: must have GooseServer once, not 2 times",
        ),
        (("http_options", "port"), True, "http_options.port: must be a number from 1 to 65535, not True"),
        (
            ("applications", 0, "logging_config"),
            {"log_levle": "DEBUG"},
            "Error: applications.0.logging_config.log_levle: there is no such option; did you mean log_level?",
        ),
        (
            ("logging_config",),
            {"log_levle": "DEBUG"},
            "Error: logging_config.log_levle: there is no such option; did you mean log_level?",
        ),
        (
            (*SERVER, "logging_config"),
            {"log_levle": "DEBUG"},
            "deployments.GooseServer.logging_config.log_levle: there is no such option; did you mean log_level?",
        ),
        (
            (*SERVER, "placement_group_strategy"),
            "BOGUS",
            "GooseServer.placement_group_strategy: must be one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD, not",
        ),
        (
            (*SERVER, "autoscaling_config", "policy", "policy_kwargs"),
            "x",
            "GooseServer.autoscaling_config.policy.policy_kwargs: must be a mapping, not 'x'",
        ),
        (("proxy_location",), "Everywhere", "proxy_location: Input should be 'Disabled', 'HeadOnly' or 'EveryNode'"),
    ],
)
def test_what_serve_would_stumble_over_is_named(
    tmp_path: Path, path: tuple[str | int, ...], value: object, problem: str
) -> None:
    file = changed(tmp_path, path, value)
    result = serve("--config", file, "--print-config")
    assert result.exit_code == 1
    assert problem in result.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"deploymentss": []}, "applications.1.deploymentss: there is no such option; did you mean deployments?"),
        (
            {"deployments": [{"name": "X"}, {"name": "Y", "num_replica": 2}]},
            "applications.1.deployments.1.num_replica: there is no such option; did you mean num_replicas?",
        ),
        (
            {"deployments": [{"name": "X", "autoscaling_config": {"max_replica": 2}}]},
            "applications.1.deployments.0.autoscaling_config.max_replica: there is no such option; did you mean",
        ),
        (
            {"deployments": [{"name": "X", "autoscaling_config": {"max_replicas": 0}}]},
            "applications.1.deployments.0.autoscaling_config.max_replicas: Input should be greater than 0, not 0",
        ),
        ({"deployments": "x"}, "applications.1.deployments: must be a list, not 'x'"),
        ({"deployments": ["x"]}, "applications.1.deployments.0: must be a mapping, not 'x'"),
        ({"name": "goose"}, "applications.1.name: must be another than an earlier application's, not 'goose'"),
        ({"route_prefix": "/"}, "applications.1.route_prefix: must be another than an earlier application's, not '/'"),
    ],
)
def test_what_serve_would_stumble_over_in_another_application_is_named(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    other = {"name": "other", "route_prefix": "/other", "import_path": "other:app", **options}
    ours = printed()["applications"]
    result = serve("--config", changed(tmp_path, ("applications",), [*ours, other]), "--print-config")
    assert result.exit_code == 1
    assert f"Error: {problem}" in result.stderr


def test_another_application_is_printed_as_it_stands(tmp_path: Path) -> None:
    other = {"name": "other", "route_prefix": "/other", "import_path": "other:app", "deployments": [{"name": "Any"}]}
    both = [*printed()["applications"], other]
    assert printed("--config", changed(tmp_path, ("applications",), both))["applications"] == both


def test_replicas_of_a_machine_that_are_no_number_are_named_whatever_is_asked_for(tmp_path: Path) -> None:
    file = changed(tmp_path, ("applications", 0, "args", "replicas_per_node"), "x")
    for options in ((), ("--replicas", "1:2")):
        result = serve("--config", file, *options, "--print-config")
        assert result.exit_code == 1
        assert "replicas_per_node" in result.stderr


def test_deployments_are_for_their_own_machine_unless_told_otherwise() -> None:
    files = sorted((Path(__file__).parents[3] / "deployments").glob("*.yaml"))
    assert files
    for file in files:
        assert yaml.safe_load(file.read_text("utf-8"))["http_options"]["host"] == "127.0.0.1", file.name


@pytest.mark.parametrize("options", [None, {}, {"port": 8001}])
def test_a_file_that_names_no_host_is_for_this_machine_too(tmp_path: Path, options: object) -> None:
    """Serve would listen to every address."""
    document = printed("--config", changed(tmp_path, ("http_options",), options))
    assert ServeDeploySchema.model_validate(document).http_options.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*SERVER, "autoscaling_config", "policy"), {"policy_function": "my_policy:scale"}),
        ((*SERVER, "autoscaling_config", "policy"), {"policy_function": b"my_policy:scale"}),
        ((*SERVER, "request_router_config"), {"request_router_class": "my_router:Mine"}),
        (("applications", 0, "deployments"), None),
        (("http_options",), None),
    ],
)
def test_what_serve_can_make_of_a_file_is_its_own_business(
    tmp_path: Path, path: tuple[str | int, ...], value: object
) -> None:
    """It may find modules where this process has none; and a part may be empty."""
    file = changed(tmp_path, path, value)
    assert printed("--config", file, "--replicas", "2")["applications"]


def test_a_gang_is_printed_as_it_stands(tmp_path: Path) -> None:
    document = printed("--replicas", 2)
    goose_server(document)["gang_scheduling_config"] = {"gang_size": 2}
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(document))
    assert printed("--config", file) == document


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("applications", 0, "runtime_env"), {"working_dir": ".", "env_vars": {"T": "hf_secret"}}, "runtime_env"),
        (("applications", 0, "runtime_env"), {"working_dir": "//user:hf_secret@host/code.zip"}, "runtime_env"),
        (("applications", 0, "runtime_env"), {"py_modules": ["//user:hf_secret@host/code.zip"]}, "runtime_env"),
        (("applications", 0, "runtime_env"), "hf_secret", "runtime_env"),
        (("applications", 0, "args", "api_keys_file"), ["hf_secret", "a"], "api_keys_file: Input is not a valid path"),
        (("applications", 0, "args", "model"), ["hf_secret"], "model: Input should be a valid string, not a list"),
        (("applications", 0, "args", "model"), {"a": "hf_secret"}, "model: Input should be a valid string, not a map"),
        (("applications", 0, "args", "engine", "budget"), ["hf_secret"], "engine.budget: budget must be 1 or more"),
        ((*SERVER, "num_replicas"), {"password": "hf_secret"}, 'must be an int or "auto", but got: a mapping'),
        ((*SERVER, "num_replicas"), [["hf_secret"], 5], 'must be an int or "auto", but got: a list'),
        ((*SERVER, "num_replicas"), "hf_'secret\n", 'must be an int or "auto", but got: ...'),
        ((*SERVER, "ray_actor_options"), {"label_selector": {"hf": "!in(hf_secret"}}, "label_selector"),
        (
            (*SERVER, "autoscaling_config", "policy", "policy_kwargs", "target_wait_s"),
            {"password": "hf_secret"},
            "target_wait_s must be above 0, not a mapping",
        ),
        (
            (*SERVER, "autoscaling_config", "policy", "policy_kwargs", "target_wait_s"),
            ["hf_secret"],
            "target_wait_s must be above 0, not a list",
        ),
        (("http_options", "ssl_keyfile_password"), 5151, "http_options.ssl_keyfile_password: Input should be a valid"),
    ],
)
def test_secrets_of_a_file_are_not_shown(
    tmp_path: Path, path: tuple[str | int, ...], value: object, problem: str
) -> None:
    result = serve("--config", changed(tmp_path, path, value), "--print-config")
    assert result.exit_code == 1
    assert problem in result.stderr
    assert not [secret for secret in ("secret", "password'", "5151") if secret in result.output]
