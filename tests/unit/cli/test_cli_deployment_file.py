"""Files of deployments: those that come along, and what is refused in one before Serve sees it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import (
    ServeDeploySchema,
)
from serve_command import DEPLOYMENTS, args_of, goose_server, printed, serve

from goose_ray.cli.deployment_reading import shipped_deployments
from goose_ray.config import GooseConfig


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


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("applications: [{name: x, import_path: other:app}]")
    for named in (other, "no-such-file"):
        result = serve("--config", named, "--print-config")
        assert result.exit_code == 1
        assert str(named) in result.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no list of `applications`"),
        ("- 1", "it has no list of `applications`"),
        ("applications: 1", "it has no list of `applications`"),
        ("applications: [1]", "its `applications` have 0 of them"),
        ("a:\n\tb", "line 2, column 1: found character '\\t'"),
        ("a: 2020-13-45", "month must be in 1..12"),
        ('a: !!bool "x"', "'x'"),
        ("a: &a {x: *a}", "Circular reference detected"),
        (2000 * "[", "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_its_own_words(tmp_path: Path, text: str, problem: str) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(text)
    result = serve("--config", other, "--print-config")
    assert result.exit_code == 1
    assert problem in result.stderr


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
            ("applications", 0, "deployments", 0, "num_replica"),
            2,
            "deployments.GooseServer.num_replica: there is no such option; did you mean num_replicas?",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "max_replica"),
            9,
            "GooseServer.autoscaling_config.max_replica: there is no such option; did you mean max_replicas?",
        ),
        (
            ("applications", 0, "deployments", 0, "ray_actor_options", "gpus"),
            1,
            "GooseServer.ray_actor_options.gpus: there is no such option; did you mean num_gpus?",
        ),
        (("applications", 0, "args"), [1], "args: must be a mapping, not a list"),
        (("applications", 0, "args"), [], "args: must be a mapping, not a list"),
        (("applications", 0, "args", "engine"), [], "engine: must be a mapping, not a list"),
        (("http_options",), False, "http_options: must be a mapping, not False"),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config"),
            [],
            "autoscaling_config: must be a mapping, not a list",
        ),
        (("applications", 0, "deployments"), {}, "deployments: must be a list, not a mapping"),
        (
            ("applications", 0, "deployments", 0, "name"),
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
            ("applications", 0, "deployments", 0, "num_replicas"),
            2,
            "deployments.GooseServer: Manually setting num_replicas is not allowed when autoscaling_config is provided",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "max_replicas"),
            0,
            "deployments.GooseServer.autoscaling_config.max_replicas: Input should be greater than 0, not 0",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "min_replicas"),
            3,
            "deployments.GooseServer.autoscaling_config: max_replicas (2) must be greater than or equal to min_rep",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "policy", "policy_function"),
            "goose_ray.scaling.policy:CapacityPolcy",
            "autoscaling_config.policy.policy_function: ours is goose_ray.scaling.policy:CapacityPolicy, not",
        ),
        (
            ("applications", 0, "deployments", 1, "autoscaling_config"),
            {"policy": {"policy_function": "goose_ray.scaling.policy:CapacityPolcy"}},
            "OpenAIIngress.autoscaling_config.policy.policy_function: ours is goose_ray.scaling.policy:CapacityPolicy",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "policy", "policy_function"),
            5,
            "GooseServer.autoscaling_config.policy.policy_function: Input should be a valid string, not 5",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "policy", "policy_function"),
            None,
            "GooseServer.autoscaling_config.policy.policy_function: Input should be a valid string, not None",
        ),
        (
            ("applications", 0, "deployments", 0, "request_router_config"),
            {"request_router_class": "x:y", "max_backoff_s": -1},
            "GooseServer.request_router_config.max_backoff_s: Input should be greater than 0, not -1",
        ),
        (
            ("applications", 0, "deployments", 0, "request_router_config"),
            {"request_router_class": ["x:y"]},
            "GooseServer.request_router_config.request_router_class: Input should be a valid string, not",
        ),
        (
            ("applications", 0, "deployments", 0, "ray_actor_options", "runtime_env"),
            {"working_dir": 5},
            "deployments.GooseServer: path_or_uri must be a string",
        ),
        (
            ("applications", 0, "deployments", 0, "backpressure_config", "status_cod"),
            429,
            "deployments.GooseServer.backpressure_config.status_cod: there is no such option",
        ),
        (
            ("applications", 0, "deployments", 0, "autoscaling_config", "policy", "policy_func"),
            "x:y",
            "GooseServer.autoscaling_config.policy.policy_func: there is no such option; did you mean policy_function?",
        ),
        (
            ("applications", 0, "deployments", 0, "request_router_config"),
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


def test_deployments_come_along_in_a_wheel() -> None:
    """Where the build puts them is where they are looked for."""
    import tomllib

    project = tomllib.loads((DEPLOYMENTS.parent / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"deployments": "goose_ray/deployments"}
    assert set(shipped_deployments()) == {path.stem for path in DEPLOYMENTS.glob("*.yaml")}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("applications", 0, "deployments", 0, "autoscaling_config", "policy"), {"policy_function": "my_policy:scale"}),
        (("applications", 0, "deployments", 0, "request_router_config"), {"request_router_class": "my_router:Mine"}),
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
    "environment",
    [
        {"working_dir": ".", "env_vars": {"HF_TOKEN": "hf_secret"}},
        {"working_dir": "//user:hf_secret@host/code.zip"},
        {"py_modules": ["//user:hf_secret@host/code.zip"]},
        "hf_secret",
    ],
)
def test_secrets_of_a_file_are_not_shown(tmp_path: Path, environment: object) -> None:
    file = changed(tmp_path, ("applications", 0, "runtime_env"), environment)
    result = serve("--config", file, "--print-config")
    assert result.exit_code == 1
    assert "runtime_env" in result.stderr
    assert "hf_secret" not in result.output
