"""Replicas replaced and taken away under load: what is asked meanwhile is answered whole and once.

The replicas are scripted, Serve and the ingress are real; `test_rolling_updates` does the same with models.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.application import redeploy, serving
from serve.helpers import MODEL, Server, eventually, replica_names
from serve.load import NUM_STREAMS, answers

# less than the streams take: they go on elsewhere
SERVER: dict[str, Any] = {"autoscaling_config": None, "num_replicas": 2, "graceful_shutdown_timeout_s": 1}
# options that only another process can have
OTHER_PROCESSES = {
    "GooseServer": {"ray_actor_options": {"num_cpus": 0.9}},
    "OpenAIIngress": {"ray_actor_options": {"num_cpus": 0.1}},
}
LONG_TOKENS = 4000


@pytest.fixture(scope="module")
def end(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While there is no such file long answers go on."""
    return tmp_path_factory.mktemp("end") / "end"


@pytest.fixture(scope="module")
def server(ray_address: str, end: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    variables = {"PYTHONPATH": str(Path(__file__).parent), "GOOSE_TEST_END": str(end)}
    application = {"import_path": "scripted_app:build_app", "runtime_env": {"env_vars": variables}}
    with serving(ray_address, tmp_path_factory.mktemp("serve"), application=application, server=SERVER) as running:
        eventually(lambda: num_routed_to(running) == 2, within_s=60, what="two replicas")
        yield running


def num_routed_to(server: Server) -> int:
    return len(server.get("/v1/goose/steps?last=1")["replicas"])


# what changes, and how many replicas stay and come
CHANGES: dict[str, tuple[dict[str, Any], int, int]] = {
    "other processes": (OTHER_PROCESSES, 0, 2),
    "one replica": ({"GooseServer": {"num_replicas": 1}}, 1, 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_request_is_lost(server: Server, end: Path, change: str) -> None:
    options, num_kept, num_new = CHANGES[change]
    end.unlink(missing_ok=True)
    before, ingresses_before = replica_names("GooseServer"), replica_names("OpenAIIngress")
    assert len(before) == 2

    def is_done() -> bool:
        now = replica_names("GooseServer")
        return len(now & before) == num_kept and len(now - before) == num_new == num_routed_to(server) - num_kept

    def disturb() -> None:
        redeploy(server, options=options)
        eventually(is_done, within_s=120, what="the end of the replicas that are to go, and new ones in their place")
        end.touch()

    found = answers(server, max_tokens=LONG_TOKENS, disturb=disturb)
    for text in found.streams:
        numbers = [int(number) for number in text.split()]
        assert numbers == list(range(len(numbers)))
    assert len(found.streams) == NUM_STREAMS
    assert found.plain == {" 0 1 2 3"}
    if "OpenAIIngress" in options:
        eventually(lambda: not ingresses_before & replica_names("OpenAIIngress"), within_s=60, what="a new ingress")
    assert len(replica_names("OpenAIIngress")) == 1


def test_who_waits_for_a_replica_is_told_that_none_will_come(server: Server, end: Path) -> None:
    """The answer is longer than its replica is given, and the application is taken down."""
    end.unlink(missing_ok=True)
    body = {"model": MODEL, "prompt": "Once", "max_tokens": LONG_TOKENS, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        redeploy(server, remove=True)
        rest = [line for line in lines if line]
    assert "taken down" in rest[-2]
    eventually(lambda: not replica_names(""), within_s=60, what="the end of all replicas")
