"""Two replicas of a tiny model with the embedded model's tokenizer, whose limits a crowd exceeds."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.application import serving
from tiny_models import save_with_embedded_tokenizer

from chaos import processes
from chaos.stage import Stage

_REPLICAS = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.serve)


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_with_embedded_tokenizer(folder, max_position_embeddings=1024)
    return folder


@pytest.fixture(scope="package")
def stage(ray_address: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("chaos")
    snapshot = folder / "memory" / "snapshot.json.gz"
    args = {"model": str(model), "aggregator_snapshot": str(snapshot), "max_body_bytes": 100_000}
    # a fixed budget: nothing is measured when a replica starts
    engine = {"budget": 16, "calibration": "none", "kv_cache_tokens": 16_384}
    server = {
        "autoscaling_config": {"min_replicas": _REPLICAS, "max_replicas": _REPLICAS, "target_ongoing_requests": 8},
        "max_ongoing_requests": 12,
        "max_queued_requests": 12,
        "health_check_period_s": 1,
        "graceful_shutdown_timeout_s": 5,
    }
    with serving(ray_address, folder, args=args, engine=engine, server=server) as running:
        # its connection, kept open, would count as a client's
        running.http.close()
        yield Stage(running.url, str(model), snapshot, num_replicas=_REPLICAS)
        # whom a test has stopped and left: it would outlive the cluster
        processes.send(processes.find(), signal.SIGCONT)
