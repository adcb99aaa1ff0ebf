"""A real `serve run deployments/goose.yaml` on a Ray cluster of this session, and real clients for it.

One cluster a session, one application a module, or for all modules of a folder whose conftest says so. A module says
what it changes in the YAML by a module-level `SERVER`, `ENGINE`, `ARGS` or `APPLICATION = {option: value}`, or names
another of `deployments/` as `DEPLOYMENT`.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import ray

from serve.application import serving
from serve.helpers import Server

_OBJECT_STORE_BYTES = 150 * 2**20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.serve)


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # what a shell starts in the background is deaf to it, and so would be all that is started and stopped here
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # by default Ray's processes give way to all others: on a busy machine no application would come up
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (so spelt by Ray)
    # autoscaling hears of the load every ten seconds by default
    os.environ["RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "1"
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
    changes = {
        name.lower(): getattr(request.module, name)
        for name in ("DEPLOYMENT", "APPLICATION", "ARGS", "ENGINE", "SERVER")
        if hasattr(request.module, name)
    }
    with serving(ray_address, tmp_path_factory.mktemp("serve"), **changes) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
