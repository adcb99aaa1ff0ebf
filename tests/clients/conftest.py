"""A server started with `goose serve`, for clients of others that are installed in an environment of their own.

`make clients` makes that environment, `.venv/clients`, and runs these tests in it with `GOOSE_CLIENTS=1`. Without it
they are skipped. `GOOSE_BIN` names another `goose` than that of `.venv`, `GOOSE_URL` a server of the embedded model
that runs already.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clients.helpers import Server

_IS_ON = os.environ.get("GOOSE_CLIENTS") == "1"
_REPOSITORY = Path(__file__).resolve().parents[2]
_START_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 60.0


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In `make clients` a client that was not tried is a failure: it could not be imported, or Node is missing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if _IS_ON and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not _IS_ON:
        pytest.skip("make clients")
    goose = os.environ.get("GOOSE_BIN", str(_REPOSITORY / ".venv/bin/goose"))
    found = subprocess.run([goose, "model", "path"], capture_output=True, text=True, check=True)
    model_directory = Path(found.stdout.strip())
    if url := os.environ.get("GOOSE_URL"):
        yield Server(url, model_directory)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--replicas", "1"]
    # a short context, so that answers without a limit take seconds
    options += ["--max-model-len", "512", "--kv-cache-tokens", "8192"]
    printed = subprocess.run([goose, "serve", *options, "--print-config"], capture_output=True, text=True, check=True)
    deployment = yaml.safe_load(printed.stdout)
    # the machine may be busy: guidellm asks /health but once
    deployment["applications"][0]["args"]["replica_silent_after_s"] = 60.0
    folder = tmp_path_factory.mktemp("served")
    config = folder / "goose.yaml"
    config.write_text(yaml.safe_dump(deployment))
    log = folder / "serve.log"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("wb") as output:
        # `local`: never a cluster that runs here already
        process = subprocess.Popen(
            [goose, "serve", "--address", "local", "--config", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        )
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _is_healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"goose serve did not come up:\n{log.read_text()[-6000:]}")
            time.sleep(0.2)
        yield Server(f"http://127.0.0.1:{port}", model_directory)
        process.send_signal(signal.SIGINT)
        assert process.wait(_STOP_TIMEOUT_S) == 0, log.read_text()[-3000:]
    finally:
        process.kill()


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No client looks for keys, proxies or files of whoever runs the tests, nor asks the hub."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
