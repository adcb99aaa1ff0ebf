"""`goose doctor`: each thing that can be missing is told, with its remedy and the exit status."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from http_answers import answering
from packaging.requirements import Requirement

from goose_ray.cli.checks import machine, software
from goose_ray.cli.checks.finding import Finding, Verdict, worst
from goose_ray.cli.checks.machine import check_cache, check_keys, check_memory, check_model, check_snapshot
from goose_ray.cli.checks.port import check_port
from goose_ray.cli.checks.ray_cluster import check_ray, cluster_to_join
from goose_ray.cli.main import main
from goose_ray.config import EngineConfig, GooseConfig
from goose_ray.telemetry.snapshot_file import SnapshotFile

SUBJECTS = ["python", "packages: serve", "packages: tensor-parallel", "compiler", "gpus", "ray"]


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ray's temporary folder, in which nothing names a cluster."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray"


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as listener:
        # Ray takes this machine's own address for localhost's
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
    return free


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def checks(result: Result) -> dict[str, dict[str, str]]:
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["object"] == "goose.doctor"
    return {check["subject"]: check for check in report["checks"]}


def test_where_all_is_well_nothing_fails(port: int) -> None:
    result = doctor("--port", port, "--json")
    found = checks(result)
    assert list(found)[:6] == SUBJECTS
    assert list(found)[6:] == [f"port {port}", "cache", "model", "memory", "/dev/shm"]
    assert result.exit_code == 0, found
    assert found["packages: serve"]["verdict"] == "ok"


def test_a_line_each_for_people_and_the_remedy_below(port: int, listening: int) -> None:
    result = doctor("--port", listening)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith(f"fail  port {listening}")]
    assert "→ stop it, or take another port" in lines[at + 1]
    assert any(line.startswith("ok    python") for line in lines)


def test_the_worst_finding_counts() -> None:
    ok, warn, fail = (Finding("x", verdict, "") for verdict in (Verdict.OK, Verdict.WARN, Verdict.FAIL))
    assert worst([]) is worst([ok]) is Verdict.OK
    assert worst([ok, warn]) is Verdict.WARN
    assert worst([fail, warn, ok]) is Verdict.FAIL


def test_a_cluster_that_died_is_named_with_its_file(no_cluster: Path, port: int) -> None:
    file = no_cluster / "ray_current_cluster"
    file.write_text(f"127.0.0.1:{port}")
    found = check_ray()
    assert found.verdict is Verdict.FAIL
    assert f"rm {file}" in found.remedy


def test_a_cluster_that_answers_is_joined(no_cluster: Path, listening: int) -> None:
    (no_cluster / "ray_current_cluster").write_text(f"127.0.0.1:{listening}")
    cluster = cluster_to_join()
    assert cluster is not None
    assert cluster.answers
    found = check_ray()
    assert found.verdict is Verdict.OK
    assert f"joins the cluster at {cluster.address}" in found.found
    assert cluster.address.endswith(f":{listening}")


def test_without_a_cluster_one_is_started() -> None:
    assert cluster_to_join() is None
    assert "starts its own" in check_ray().found


def test_a_taken_port_may_be_the_cluster_s_own(listening: int) -> None:
    assert check_port("127.0.0.1", listening, joins_cluster=False).verdict is Verdict.FAIL
    assert check_port("0.0.0.0", listening, joins_cluster=True).verdict is Verdict.WARN


@pytest.mark.parametrize(("status", "healthy"), [(200, 1), (503, 0)])
def test_a_goose_server_on_the_port_is_told_to_be_one(status: int, healthy: int) -> None:
    body = json.dumps({"status": "x", "replicas": {"live": 2, "healthy": healthy}}).encode()
    with answering(body, lambda asked: status if asked.path == "/health" else 401) as port:
        found = check_port("127.0.0.1", port, joins_cluster=False)
        joined = check_port("127.0.0.1", port, joins_cluster=True)
    told = f"a goose server ({healthy} of 2 replicas healthy) answers on 127.0.0.1:{port}"
    assert found.verdict is Verdict.FAIL
    assert found.found == f"{told} already"
    assert "Ctrl-C" in found.remedy
    assert "--port" in found.remedy
    assert (joined.verdict, joined.found) == (Verdict.WARN, told)


@pytest.mark.parametrize(
    "body", [b"", b"ok", b"[]", b'{"status": "ok"}', b'{"replicas": {"live": "a", "healthy": 1}}', b"\xff"]
)
def test_another_server_on_the_port_is_not_taken_for_one(body: bytes) -> None:
    with answering(body, lambda _: 200) as port:
        found = check_port("127.0.0.1", port, joins_cluster=False)
    assert found.verdict is Verdict.FAIL
    assert found.found == f"somebody listens on 127.0.0.1:{port} already"


@pytest.mark.parametrize("host", ["999.1.1.1", "203.0.113.7", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # as on a network that drops what it does not know
    def nobody(*_: object, **__: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", nobody)
    found = check_port(host, 8000, joins_cluster=False)
    assert found.verdict is Verdict.FAIL
    assert f"nobody can listen on {host}:8000" in found.found
    assert check_port(host, 8000, joins_cluster=True).verdict is Verdict.OK


def test_a_pool_that_has_no_room_is_told_what_has(tmp_path: Path) -> None:
    too_large = GooseConfig(engine=EngineConfig(kv_cache_tokens=10**9))
    found = check_memory(too_large)
    if "unknown" in found.found:
        pytest.skip("the embedded model is not here: goose model pull")
    assert found.verdict is Verdict.FAIL
    tokens = int(found.remedy.rsplit(" ", 1)[1])
    assert 64 <= tokens < 10**9
    # What is free changes while others work here; nine tenths of it stay.
    fitting = GooseConfig(engine=EngineConfig(kv_cache_tokens=max(64, tokens * 9 // 10)))
    assert check_memory(fitting).verdict is Verdict.OK


def test_ranks_that_share_a_machine_are_counted_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has what a process takes; weights and pool are divided among them."""
    monkeypatch.setattr(machine, "_available_memory", lambda: 1 << 60)
    shown = []
    for ranks in (1, 2):
        found = check_memory(GooseConfig(device="cpu", tensor_parallel_size=ranks)).found
        if "unknown" in found:
            pytest.skip("the embedded model is not here: goose model pull")
        shown.append(float(found.removeprefix("a replica takes ").split(" ", 1)[0]))
    assert shown[1] - shown[0] == pytest.approx(1.0, abs=0.02)


def test_a_cache_that_cannot_be_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GOOSE_CACHE", str(tmp_path / "file" / "cache"))
    found = check_cache()
    assert found.verdict is Verdict.FAIL
    assert "GOOSE_CACHE" in found.remedy


def test_a_snapshot_has_a_file_that_can_be_written(tmp_path: Path) -> None:
    assert check_snapshot(str(tmp_path / "new" / "memory.json.gz")).verdict is Verdict.OK
    assert not (tmp_path / "new").exists()
    kept = SnapshotFile(str(tmp_path / "memory.json.gz"))
    kept.write({"a": 1})
    assert check_snapshot(str(tmp_path / "memory.json.gz")).verdict is Verdict.OK
    assert kept.read() == {"a": 1}
    found = check_snapshot(str(tmp_path / "memory.json.gz" / "x"))
    assert found.verdict is Verdict.FAIL
    assert "cannot be written" in found.found
    assert found.remedy


def test_packages_are_those_of_the_extra_in_its_versions() -> None:
    names = {requirement.name for requirement in software._requirements("serve")}
    assert {"numpy", "ray", "torch"} <= names
    assert not {"deepspeed", "pytest"} & names
    assert software._problem(Requirement("numpy>=1")) is None
    assert "is not >=99" in (software._problem(Requirement("numpy>=99")) or "")
    assert software._problem(Requirement("no-such-package")) == "no no-such-package"
    assert software.check_packages("no-such-extra").verdict is Verdict.FAIL
    assert software.check_packages("no-such-extra", needed=False).verdict is Verdict.WARN


def test_a_compiler_is_needed_for_ranks_on_the_cpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert shutil.which("no-such-compiler") is None
    one = software.check_compiler(GooseConfig())
    assert (one.verdict, "no-such-compiler" in one.found) == (Verdict.WARN, True)
    assert software.check_compiler(GooseConfig(tensor_parallel_size=2, device="cpu")).verdict is Verdict.FAIL


def test_cuda_that_is_wanted_and_not_there_fails() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert software.check_gpus(GooseConfig()).verdict is not Verdict.FAIL
    assert software.check_gpus(GooseConfig(device="cuda")).verdict is Verdict.FAIL


def test_a_deployment_of_one_s_own_is_looked_at(tmp_path: Path, port: int) -> None:
    file = tmp_path / "mine.yaml"
    args = {"model": "someone/has-never-been-here"}
    application = {"name": "mine", "import_path": "goose_ray.app:build_app", "args": args}
    file.write_text(yaml.safe_dump({"http_options": {"port": port}, "applications": [application]}))
    found = checks(doctor("--config", file, "--json"))
    assert found["model"]["verdict"] == "warn"
    assert "goose model pull someone/has-never-been-here" in found["model"]["remedy"]
    assert f"port {port}" in found


def test_a_deployment_that_is_wrong_is_a_finding_among_others(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    application = {"name": "mine", "import_path": "goose_ray.app:build_app", "args": {"engine": {"policy": "aniso"}}}
    file.write_text(yaml.safe_dump({"applications": [application]}))
    result = doctor("--config", file, "--json")
    found = checks(result)
    assert result.exit_code == 1
    assert found["deployment"]["verdict"] == "fail"
    assert "engine.policy: must be one of" in found["deployment"]["found"]
    assert {"python", "cache"} <= found.keys()


def test_a_context_that_the_model_does_not_have_fails() -> None:
    assert check_model(GooseConfig()).verdict is Verdict.OK
    finding = check_model(GooseConfig(engine=EngineConfig(max_model_len=8193)))
    assert finding.verdict is Verdict.FAIL
    assert "engine.max_model_len must be at most 8192" in finding.found


def test_api_keys_are_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    missing = check_keys(file)
    assert missing.verdict is Verdict.FAIL
    assert str(file) in missing.found
    made = CliRunner().invoke(main, ["keys", "new", "--file", str(file), "--name", "alice"])
    assert made.exit_code == 0, made.output
    assert check_keys(file) == Finding("API keys", Verdict.OK, f"1 in {file}")
