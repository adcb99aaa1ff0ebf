"""Two replicas learn together: each is tuned by the answers to its reports, and one that starts begins with texts."""

import os
import signal
from typing import Any

import pytest

from serve.helpers import Server, eventually

APPLICATION = {
    "args": {
        "model": "smollm2-135m-instruct",
        "engine": {"kv_cache_tokens": 4096, "budget": 16},
        "report_period_s": 0.5,
        "replica_silent_after_s": 2.0,
        "share_period_s": 1.0,
    }
}
SERVER = {"autoscaling_config": {"min_replicas": 2, "max_replicas": 2, "target_ongoing_requests": 8}}


def live(server: Server) -> dict[str, Any]:
    """By incarnation."""
    return {r["incarnation"]: r for r in server.get("/v1/goose/acceptance")["replicas"] if r["live"]}


@pytest.fixture(autouse=True)
def both_replicas(server: Server) -> None:
    eventually(lambda: len(live(server)) == 2, within_s=120, what="two replicas")


def test_every_replica_is_tuned_and_says_so(server: Server) -> None:
    def all_tuned() -> bool:
        server.chat("Count from one to ten.", max_tokens=32)
        return all(replica["tuning"]["version"] > 0 for replica in live(server).values())

    eventually(all_tuned, within_s=120, what="tunings to reach both")
    replicas = live(server)
    assert len({replica["tuning"]["version"] for replica in replicas.values()}) == 2, "each has its own"
    assert server.metric("goose_tuning_version") > 0
    # trees change, replies do not
    answers = [server.chat("Count from one to ten.", max_tokens=32) for _ in range(4)]
    replies = {answer["choices"][0]["message"]["content"] for answer in answers}
    assert len(replies) == 1


def test_a_new_replica_starts_with_the_texts_of_the_one_that_lives(server: Server) -> None:
    for _ in range(4):
        server.chat("List the days of the week.", max_tokens=32)
    victim, survivor = live(server)
    # the survivor has offered by now, or will before the new one asks: it loads a model first
    os.kill(live(server)[victim]["pid"], signal.SIGKILL)

    def replaced() -> bool:
        server.chat("List the days of the week.", max_tokens=16)
        return len(live(server)) == 2 and victim not in live(server)

    eventually(replaced, within_s=180, what="a new replica")
    (fresh,) = [replica for name, replica in live(server).items() if name != survivor]
    assert fresh["start_text_tokens"] > 0
