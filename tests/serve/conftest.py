"""A real `serve run deployments/goose.yaml` on a Ray cluster of this session, and real clients for it.

One cluster a session, one application a module. A module says what it changes in the YAML by a module-level
`SERVER`, `ENGINE` or `APPLICATION = {option: value}`, or names another of `deployments/` as `DEPLOYMENT`; the port is
always a free one.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import ray
import yaml

from serve.helpers import Server

REPOSITORY = Path(__file__).resolve().parents[2]
_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 60.0
_OBJECT_STORE_BYTES = 150 * 2**20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.serve)


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(
        # never one that runs here already, or that RAY_ADDRESS names
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        namespace="tests",
    )
    yield context.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture(scope="module")
def server(
    ray_address: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    port = _free_port()
    config = folder / "goose.yaml"
    config.write_text(yaml.safe_dump(_deployment(port, request.module)))
    log = folder / "serve.log"
    command = [str(Path(sys.executable).with_name("serve")), "run", "--address", ray_address, str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    running = Server(port, log)
    try:
        _wait_until_up(running, process)
        yield running
    finally:
        running.http.close()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
        process.kill()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def _deployment(port: int, module: Any) -> dict[str, Any]:
    file = REPOSITORY / "deployments" / getattr(module, "DEPLOYMENT", "goose.yaml")
    deployment: dict[str, Any] = yaml.safe_load(file.read_text())
    deployment["http_options"]["port"] = port
    (application,) = deployment["applications"]
    application.update(getattr(module, "APPLICATION", {}))
    # the session's cluster claims more CPUs than the machine has
    application["args"]["engine"].update({"num_threads": 1, **getattr(module, "ENGINE", {})})
    (goose_server,) = [entry for entry in application["deployments"] if entry["name"] == "GooseServer"]
    goose_server.update(getattr(module, "SERVER", {}))
    return deployment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(server: Server, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not server.is_healthy():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"serve run did not come up:\n{server.log.read_text()[-6000:]}")
        time.sleep(0.2)
