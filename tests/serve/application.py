"""A running `goose serve` of one of `deployments/`, changed for the tests that need it."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.serve.schema import ServeDeploySchema

from serve.helpers import Server

__all__ = ["redeploy", "serving"]

_REPOSITORY = Path(__file__).resolve().parents[2]
_OWN = "goose_ray.app:build_app"
_START_TIMEOUT_S = 300.0
# answers have a minute, and Serve half of one to end
_STOP_TIMEOUT_S = 120.0


@contextlib.contextmanager
def serving(
    ray_address: str,
    folder: Path,
    *,
    deployment: str = "goose.yaml",
    application: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
) -> Iterator[Server]:
    """From when it is healthy. `application`, its `args`, their `engine` and `server` (GooseServer's deployment) are
    what is set in these parts of the YAML; the port is a free one.
    """
    port = _free_port()
    config = folder / "goose.yaml"
    changed = _changed(deployment, port, application or {}, args or {}, engine or {}, server or {})
    config.write_text(yaml.safe_dump(changed))
    log = folder / "serve.log"
    programs = Path(sys.executable).parent
    command = [str(programs / "goose"), "serve", "--address", ray_address, "--config", str(config)]
    if changed["applications"][0]["import_path"] != _OWN:
        # another's application: one with faults built in
        command = [str(programs / "serve"), "run", "--address", ray_address, str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    running = Server(port, log, config, process)
    try:
        _wait_until_up(running, process)
        yield running
    finally:
        running.http.close()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
        process.kill()


def redeploy(
    server: Server,
    *,
    args: Mapping[str, Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    remove: bool = False,
) -> None:
    """Sets more of the `args` and of the options of deployments, by name, or removes the application. Returns once
    Serve knows: what runs goes on for a while.
    """
    config: dict[str, Any] = yaml.safe_load(server.config.read_text())
    (one,) = config["applications"]
    one["args"].update(args or {})
    for name, changed in (options or {}).items():
        _deployment(one, name).update(changed)
    if remove:
        config["applications"] = []
    server.config.write_text(yaml.safe_dump(config))
    # What `serve run` and `serve deploy` come to. Serve's own client would go on asking the first controller of the
    # session, of which every application has one.
    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    ray.get(controller.apply_config.remote(ServeDeploySchema.model_validate(config)))


def _deployment(application: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [entry for entry in application["deployments"] if entry["name"] == name]
    return found


def _changed(
    name: str,
    port: int,
    application: Mapping[str, Any],
    args: Mapping[str, Any],
    engine: Mapping[str, Any],
    server: Mapping[str, Any],
) -> dict[str, Any]:
    deployment: dict[str, Any] = yaml.safe_load((_REPOSITORY / "deployments" / name).read_text())
    deployment["http_options"]["port"] = port
    (one,) = deployment["applications"]
    one.update(application)
    one["args"].update(args)
    # the session's cluster claims more CPUs than the machine has
    one["args"]["engine"].update({"num_threads": 1, **engine})
    for entry in one["deployments"]:
        # how long a replica waits at its end before it looks whether requests are under way: two seconds by default
        entry["graceful_shutdown_wait_loop_s"] = 0.1
    _deployment(one, "GooseServer").update(server)
    return deployment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(server: Server, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not server.is_healthy():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the application did not come up:\n{server.log.read_text()[-6000:]}")
        time.sleep(0.2)
