"""Two replicas of two ranks each under load, and what may happen to a process: no stream shows any of it.

`make ranks` runs it: every loss is followed by the start of another gang.
"""

import os
import signal
import sys
import time
from typing import Any

import pytest

from serve.helpers import Server, eventually
from serve.load import NUM_STREAMS, answers
from serve.test_tensor_parallel import command, ranks

pytestmark = pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: takes minutes")

DEPLOYMENT = "goose-tp2.yaml"
ENGINE = {"budget": 16, "kv_cache_tokens": 4096}
# room for both on the session's four CPUs
SERVER = {"num_replicas": 2, "placement_group_bundles": [{"CPU": 1}, {"CPU": 0.1}, {"CPU": 0.1}]}
MAX_TOKENS = 40


def healthy_replicas(server: Server) -> list[Any]:
    return [r for r in server.get("/v1/goose/acceptance")["replicas"] if r["live"] and r["healthy"]]


VICTIMS = {
    "a rank": signal.SIGKILL,
    "another rank": signal.SIGKILL,
    "a stopped rank": signal.SIGSTOP,
    "a replica": signal.SIGKILL,
    "a stopped replica": signal.SIGSTOP,
}


@pytest.mark.parametrize("who", VICTIMS)
def test_streams_are_those_of_an_undisturbed_run(server: Server, who: str, capsys: pytest.CaptureFixture[str]) -> None:
    """B16, B17, B20."""

    def is_whole() -> bool:
        return len(ranks()) == 4 and len(healthy_replicas(server)) == 2

    eventually(is_whole, within_s=300, what="two replicas")
    started_s = time.monotonic()
    undisturbed = answers(server, max_tokens=MAX_TOKENS)
    undisturbed_s = time.monotonic() - started_s
    before = ranks()
    victim = healthy_replicas(server)[0]["pid"] if "replica" in who else sorted(before)[who == "another rank"]
    started_s = time.monotonic()
    disturbed = answers(server, max_tokens=MAX_TOKENS, disturb=lambda: os.kill(victim, VICTIMS[who]))
    disturbed_s = time.monotonic() - started_s
    assert disturbed.streams == undisturbed.streams
    assert len(set(disturbed.streams)) == NUM_STREAMS
    assert disturbed.plain == undisturbed.plain
    eventually(
        lambda: len(before & ranks()) == 2, within_s=30, what="the end of the gang that was hit, and of no other"
    )
    eventually(lambda: not command(victim), within_s=30, what="the end of the process that was hit")
    eventually(is_whole, within_s=300, what="another replica")
    whole_s = time.monotonic() - started_s
    with capsys.disabled():
        sys.stdout.write(
            f"\n{who}: all streams whole after {disturbed_s:.0f} s, undisturbed {undisturbed_s:.0f} s; "
            f"two replicas again after {whole_s:.0f} s\n"
        )
