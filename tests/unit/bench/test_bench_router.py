"""`goose bench router`: conversations over several replicas, in miniature and on the shared sessions."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from fakes import FakeTokenizer

from goose_ray.bench.cluster.echo_replica import EchoReplica, StepPrice
from goose_ray.bench.cluster.router import RouterRun, Turn, turns_of
from goose_ray.bench.prompts import Dialogue
from goose_ray.cli.main import main
from goose_ray.config import EngineConfig

TOKENIZER = FakeTokenizer()
RUN = RouterRun(
    replicas=2,
    routers=1,
    at_once=6,
    think_s=0.5,
    max_ongoing=4,
    engine=EngineConfig(kv_cache_tokens=24576, max_running_requests=4),
    price=StepPrice(0.02, 0.001),
    max_model_len=8192,
    blocks_per_replica=96,
    seed=3,
)


def session(name: str, num_turns: int = 6) -> list[Turn]:
    messages = [
        {"role": ("user", "assistant")[place % 2], "content": f"{name} {place} said something. " * 16}
        for place in range(2 * num_turns)
    ]
    return turns_of(Dialogue(name, messages=tuple(messages)), TOKENIZER, max_prompt=8000, max_reply=8)


SESSIONS = [session(f"conversation {number}") for number in range(12)]


def test_a_conversation_is_its_requests_with_the_recorded_replies() -> None:
    turns = SESSIONS[0]
    assert len(turns) == 6
    for turn, following in itertools.pairwise(turns):
        assert following.prompt[: len(turn.prompt)] == turn.prompt
        assert following.key.blocks[: len(turn.key.blocks)] == turn.key.blocks
        assert bytes(turn.reply) == b"conversa"


def test_an_echo_replica_counts_its_time_by_the_rows() -> None:
    replica = EchoReplica(TOKENIZER, EngineConfig(kv_cache_tokens=256), StepPrice(1.0, 0.1), max_model_len=64)
    replica.add("a", tuple(range(1, 31)), (65, 66))
    first, second = replica.step(), replica.step()
    assert (first.admitted, first.begun, first.finished) == (("a",), ("a",), ())
    assert (second.admitted, second.begun, second.finished) == ((), (), ("a",))
    assert (first.seconds, second.seconds) == (1.0 + 30 * 0.1, 1.0 + 0.1)


def test_a_run_depends_on_its_seed_alone_and_loses_no_request() -> None:
    first, again = (RUN.measure(SESSIONS, TOKENIZER, "prefix") for _ in range(2))
    assert first == again
    assert first.requests == sum(first.requests_by_replica) == 72
    assert first.prompt_tokens == sum(len(turn.prompt) for turns in SESSIONS for turn in turns)
    assert replace(RUN, seed=4).measure(SESSIONS, TOKENIZER, "prefix") != first


def test_conversations_that_return_find_more_and_wait_no_longer() -> None:
    default, prefix = (RUN.measure(SESSIONS, TOKENIZER, name) for name in ("power_of_two", "prefix"))
    # no conversation can find more than its last turn: 70 % here
    assert prefix.hit_rate > 0.65 > 1.15 * default.hit_rate
    assert prefix.queue_wait_p95_s < 1.1 * default.queue_wait_p95_s
    assert min(prefix.requests_by_replica) > 0.35 * prefix.requests


def test_several_routers_that_never_talk_still_do_better_than_none() -> None:
    alone, several = (replace(RUN, routers=routers).measure(SESSIONS, TOKENIZER, "prefix") for routers in (1, 4))
    default = RUN.measure(SESSIONS, TOKENIZER, "power_of_two")
    assert default.hit_rate < several.hit_rate < alone.hit_rate


def test_on_the_shared_sessions(shared_dir: Path) -> None:
    """A small part of what docs/benchmarks.md has; nothing here depends on the machine."""
    file = str(shared_dir / "data" / "prompts" / "support_sessions.jsonl")
    options = ["--limit", "10", "--max-tokens", "8", "--at-once", "10", "--kv-tokens", "12288", "--context", "8192"]
    result = CliRunner().invoke(main, ["bench", "router", "--prompts", file, *options, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["hit_rate_ratio"] >= 1.2
    assert found["queue_wait_p95_ratio"] <= 1.1
