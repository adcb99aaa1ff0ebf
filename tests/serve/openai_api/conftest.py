"""One application for all modules of this folder."""

from collections.abc import Iterator

import pytest

from serve.application import serving
from serve.helpers import Server


@pytest.fixture(scope="package")
def server(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        ray_address,
        tmp_path_factory.mktemp("serve"),
        args={"max_body_bytes": 2_000_000},
        # a short context, so that filling it takes seconds
        engine={"max_model_len": 1024},
        # one replica, so that what its steps hold is known
        server={"autoscaling_config": {"min_replicas": 1, "max_replicas": 1, "target_ongoing_requests": 8}},
    ) as running:
        yield running
