"""What all tests share: where the data outside the repository is, the seed of the property tests, and a Ray cluster for
those of a running application.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run; a slow machine is no failure.
settings.register_profile("goose", derandomize=True, deadline=None)
settings.load_profile("goose")

_REPOSITORY = Path(__file__).resolve().parents[1]
_OBJECT_STORE_BYTES = 150 * 2**20


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared test data: `GOOSE_SHARED`, else `shared` beside the repository.

    Without it the test is skipped, unless `GOOSE_SHARED_REQUIRED=1` makes its absence an error.
    """
    folder = Path(os.environ.get("GOOSE_SHARED", _REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        reason = f"no shared test data at {folder}; set GOOSE_SHARED to its folder"
        if os.environ.get("GOOSE_SHARED_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def goose_trees_file(request: pytest.FixtureRequest) -> Path:
    """Reference decisions of the paper's method: `GOOSE_TREES`, else the file among the shared data."""
    named = os.environ.get("GOOSE_TREES")
    if named:
        return Path(named)
    shared: Path = request.getfixturevalue("shared_dir")
    return shared / "data" / "goose_trees.jsonl"


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Of a cluster of this session, for tests of a running application."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # what a shell starts in the background is deaf to it, and so would be all that is started and stopped here
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # by default Ray's processes give way to all others: on a busy machine no application would come up
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (so spelt by Ray)
    # autoscaling hears of the load every ten seconds by default
    os.environ["RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "1"
    # as `goose serve` has them where it starts Ray
    os.environ["RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS"] = "1"
    os.environ["RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S"] = "2"
    os.environ["RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"] = "1"
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
