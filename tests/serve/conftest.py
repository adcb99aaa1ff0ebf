"""A real `serve run deployments/goose.yaml` on a Ray cluster of this session, and real clients for it.

One application a module, or for all modules of a folder whose conftest says so. A module says
what it changes in the YAML by a module-level `SERVER`, `ENGINE`, `ARGS` or `APPLICATION = {option: value}`, or names
another of `deployments/` as `DEPLOYMENT`.
"""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from serve.application import serving
from serve.helpers import Server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.serve)


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
