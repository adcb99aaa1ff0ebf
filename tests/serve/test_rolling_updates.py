"""New settings, and a replica fewer, under load: what is asked meanwhile is answered whole, once, and as ever.

`make ranks` runs it: every replica starts again. Replicas get less time to end than the streams take, so that these go
on elsewhere. `test_updates` does the same with replicas that have no model.
"""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from serve.application import redeploy, serving
from serve.helpers import Server, eventually, replica_names
from serve.load import Answers, answers
from serve.test_tensor_parallel import ranks

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: takes minutes"),
]

ENGINE = {"budget": 16, "kv_cache_tokens": 4096}
OPTIONS: dict[str, Any] = {"autoscaling_config": None, "num_replicas": 2, "graceful_shutdown_timeout_s": 2}
NUM_RANKS = {"goose.yaml": 0, "goose-tp2.yaml": 2}
MAX_TOKENS = 160


@pytest.fixture(scope="module", params=NUM_RANKS)
def deployment(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def server(ray_address: str, deployment: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = OPTIONS
    if NUM_RANKS[deployment]:
        # room for both, and for one that is still going, on the session's four CPUs
        options = {**OPTIONS, "placement_group_bundles": [{"CPU": 1}, {"CPU": 0.1}, {"CPU": 0.1}]}
    folder = tmp_path_factory.mktemp("serve")
    with serving(ray_address, folder, deployment=deployment, engine=ENGINE, server=options) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> Answers:
    eventually(lambda: num_routed_to(server) == 2, within_s=300, what="two replicas")
    return answers(server, max_tokens=MAX_TOKENS)


def num_routed_to(server: Server) -> int:
    return len(server.get("/v1/goose/steps?last=1")["replicas"])


# what changes, and how many replicas stay and come
CHANGES: dict[str, tuple[dict[str, Any], int, int]] = {
    "other settings": ({"args": {"report_period_s": 1.5}}, 0, 2),
    "one replica": ({"options": {"GooseServer": {"num_replicas": 1}}}, 1, 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_request_is_lost(
    server: Server,
    deployment: str,
    undisturbed: Answers,
    change: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed, num_kept, num_new = CHANGES[change]
    before, ranks_before = replica_names("GooseServer"), ranks()
    assert len(before) == 2
    started_s = time.monotonic()
    disturbed = answers(server, max_tokens=MAX_TOKENS, disturb=lambda: redeploy(server, **changed))
    assert disturbed.streams == undisturbed.streams
    assert disturbed.plain == undisturbed.plain

    def is_done() -> bool:
        now = replica_names("GooseServer")
        return len(now & before) == num_kept and len(now - before) == num_new

    eventually(is_done, within_s=300, what="the end of the replicas that are to go, and as many new ones as wanted")
    eventually(lambda: num_routed_to(server) == num_kept + num_new, within_s=120, what="replicas that answer")
    num_ranks = NUM_RANKS[deployment]
    eventually(
        lambda: (len(ranks()), len(ranks() & ranks_before)) == ((num_kept + num_new) * num_ranks, num_kept * num_ranks),
        within_s=60,
        what="the end of the ranks of the replicas that have gone",
    )
    eventually(lambda: len(replica_names("OpenAIIngress")) == 1, within_s=60, what="the end of the old ingress")
    with capsys.disabled():
        sys.stdout.write(
            f"\n{deployment}, {change}: {len(disturbed.streams)} streams and {disturbed.num_plain} plain requests, "
            f"all whole; {num_kept + num_new} replicas after {time.monotonic() - started_s:.0f} s\n"
        )
