"""`goose serve` up to where Serve takes over: what would be served, and what is refused at once."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    ServeDeploySchema,
)
from serve_command import DEPLOYMENTS, args_of, goose_server, printed, serve

from goose_ray.cli.deployment_file import DeploymentFile
from goose_ray.cli.serving import _Watch, reason_of
from goose_ray.config import GooseConfig


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ray's temporary folder, in which nothing names a cluster."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray"


def test_without_options_it_is_the_file_that_comes_along() -> None:
    assert printed() == yaml.safe_load((DEPLOYMENTS / "goose.yaml").read_text())


def test_options_take_the_place_of_fields() -> None:
    options: tuple[object, ...] = (
        "--host",
        "0.0.0.0",
        "--port",
        8123,
        "--tensor-parallel-size",
        2,
        "--dtype",
        "bfloat16",
    )
    options += ("--device", "cpu", "--served-model-name", "small", "--policy", "chain", "--budget", 8)
    options += ("--max-model-len", 512, "--kv-cache-tokens", 4096, "--max-running-requests", 4)
    document = printed("Qwen/Qwen3-0.6B", *options)
    assert document["http_options"] == {"host": "0.0.0.0", "port": 8123}
    config = GooseConfig.from_args(args_of(document))
    assert (config.model, config.model_name, config.tensor_parallel_size) == ("Qwen/Qwen3-0.6B", "small", 2)
    assert (config.dtype, config.device) == ("bfloat16", "cpu")
    engine = config.engine
    assert (engine.policy, engine.budget, engine.max_model_len) == ("chain", 8, 512)
    assert (engine.kv_cache_tokens, engine.max_running_requests) == (4096, 4)
    ServeDeploySchema.model_validate(document)


@pytest.mark.parametrize(("running", "let_through"), [(4, 32), (64, 64)])
def test_a_replica_is_handed_as_many_requests_as_it_is_to_run(running: int, let_through: int) -> None:
    document = printed("--max-running-requests", running)
    assert goose_server(document)["max_ongoing_requests"] == let_through


def test_a_budget_may_be_automatic() -> None:
    assert args_of(printed("--budget", "auto"))["engine"]["budget"] == "auto"


def test_another_model_is_not_announced_by_the_name_of_the_file_s() -> None:
    assert "served_model_name" not in args_of(printed("a/b", "--config", "qwen3-32b"))
    assert args_of(printed("Qwen/Qwen3-32B", "--config", "qwen3-32b"))["served_model_name"] == "qwen3-32b"


def test_a_number_of_replicas_ends_autoscaling() -> None:
    document = printed("--replicas", 1)
    server = goose_server(document)
    assert server["num_replicas"] == 1
    assert "autoscaling_config" not in server
    # the one replica gets the whole machine
    assert args_of(document)["replicas_per_node"] == 1


def test_two_numbers_of_replicas_are_autoscaling_s_bounds() -> None:
    server = goose_server(printed("--replicas", "2:5"))
    assert "num_replicas" not in server
    before = goose_server(printed())["autoscaling_config"]
    assert server["autoscaling_config"] == {**before, "min_replicas": 2, "max_replicas": 5}


@pytest.mark.parametrize("wrong", ["0", "x", "3:2", "1:", "-1", pytest.param("9" * 5000, id="of-5000-digits")])
def test_other_numbers_of_replicas_are_a_wrong_command_line(wrong: str) -> None:
    assert serve(f"--replicas={wrong}", "--print-config").exit_code == 2


@pytest.mark.parametrize("wrong", ["10001", "1:10001", "99999999999999999999"])
def test_more_replicas_than_anybody_has_are_a_slip(wrong: str) -> None:
    result = serve(f"--replicas={wrong}", "--print-config")
    assert result.exit_code == 2
    assert "at most 10000 replicas" in result.stderr


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1.5"])
def test_what_is_no_budget_is_told_what_is_one(wrong: str) -> None:
    result = serve(f"--budget={wrong}", "--print-config")
    assert result.exit_code == 2
    assert f"'{wrong}' is neither a number of nodes from 1 on nor auto" in result.stderr


def test_a_model_on_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOSE_MODEL", "x/from-environment")
    assert DeploymentFile().config.model == "x/from-environment"
    assert args_of(printed("a/b"))["model"] == "a/b"
    assert DeploymentFile().config.model == "smollm2-135m-instruct"


def test_api_keys_of_the_command_line_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOSE_API_KEYS_FILE", "/keys/of-environment.jsonl")
    assert str(DeploymentFile().config.api_keys_file) == "/keys/of-environment.jsonl"
    assert args_of(printed("--api-keys-file", __file__))["api_keys_file"] == __file__
    assert DeploymentFile().config.api_keys_file is None


def test_a_wrong_value_is_refused_by_its_field() -> None:
    result = serve("--policy", "swan", "--print-config")
    assert result.exit_code == 1
    assert "engine.policy" in result.stderr
    assert "swan" in result.stderr


@pytest.mark.parametrize("content", [None, "junk"])
def test_files_that_are_not_what_they_should_be_are_refused_before_ray_starts(
    no_cluster: Path, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    named = tmp_path / "named"
    if content is not None:
        named.write_text(content)
    document = printed("--port", free_port)
    args_of(document)["engine"]["calibration"] = str(named)
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(document))
    result = serve("--config", file)
    assert result.exit_code == 1
    assert f"engine.calibration: {named}" in result.stderr
    monkeypatch.setenv("GOOSE_API_KEYS_FILE", str(named))
    result = serve("--port", free_port)
    assert result.exit_code == 1
    assert f"api_keys_file: {named}" in result.stderr


def test_a_place_that_no_snapshot_can_be_in_is_refused_before_ray_starts(
    no_cluster: Path, free_port: int, tmp_path: Path
) -> None:
    taken = tmp_path / "notes.txt"
    taken.write_text("mine")
    file = tmp_path / "deployment.yaml"
    for place in (taken, taken / "memory.json.gz", tmp_path, "no-such-scheme://memory"):
        document = printed("--port", free_port)
        args_of(document)["aggregator_snapshot"] = str(place)
        file.write_text(yaml.safe_dump(document))
        result = serve("--config", file)
        assert result.exit_code == 1
        assert f"aggregator_snapshot {place} cannot be" in result.stderr
    assert taken.read_text() == "mine"


def test_a_deployment_s_name_in_a_model_s_place_is_told_where_it_belongs() -> None:
    result = serve("qwen3-32b")
    assert result.exit_code == 2
    assert "goose serve --config qwen3-32b" in result.stderr


def test_a_cluster_that_died_is_named_with_the_remedy(no_cluster: Path, free_port: int) -> None:
    address_file = no_cluster / "ray_current_cluster"
    address_file.write_text(f"127.0.0.1:{free_port}")
    result = serve()
    assert result.exit_code == 1
    assert re.search(rf"nobody answers at \S+:{free_port}, which {address_file} names", result.stderr)
    assert f"rm {address_file}" in result.stderr


def test_a_dead_cluster_of_the_environment_is_named_too(
    no_cluster: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port}")
    result = serve()
    assert result.exit_code == 1
    assert "which --address or RAY_ADDRESS names" in result.stderr


def test_a_port_that_somebody_listens_on_is_refused(no_cluster: Path, taken_port: int) -> None:
    result = serve("--port", taken_port)
    assert result.exit_code == 1
    assert f"127.0.0.1:{taken_port}" in result.stderr
    assert "--port" in result.stderr


def test_a_model_that_is_none_is_refused_before_ray_starts(no_cluster: Path, free_port: int) -> None:
    result = serve("nonsense", "--port", free_port)
    assert result.exit_code == 1
    assert "there is no model 'nonsense'" in result.stderr


@pytest.mark.parametrize(("mode", "token"), [("token", "RAY_AUTH_MODE=token "), ("disabled", ""), (None, "")])
def test_a_ready_server_tells_how_its_ray_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str | None, token: str
) -> None:
    running = ApplicationStatusOverview(ApplicationStatus.RUNNING, "", 0.0, {})
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications={"goose": running}))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    watch = _Watch(DeploymentFile(), dashboard="127.0.0.1:8266")
    monkeypatch.setattr(watch, "_is_listening", lambda: True)
    watch.run()
    told = capsys.readouterr().err
    assert re.search(rf": `{token}\S*serve status --address http://127.0.0.1:8266`", told)


def test_the_reason_of_a_failure_is_the_replica_s_exception() -> None:
    said = "The deployment failed to start 3 times. Error:\nTraceback:\n  File ...\nConfigError: engine.x: wrong\n"
    deployments = {
        "GooseServer": DeploymentStatusOverview(DeploymentStatus.DEPLOY_FAILED, None, {}, said),
        "OpenAIIngress": DeploymentStatusOverview(DeploymentStatus.HEALTHY, None, {}, ""),
    }
    failed = ApplicationStatusOverview(ApplicationStatus.DEPLOY_FAILED, "Failed to update.", 0.0, deployments)
    assert reason_of(failed) == "GooseServer: ConfigError: engine.x: wrong"
    failed.deployments.pop("GooseServer")
    assert reason_of(failed) == "Failed to update."
