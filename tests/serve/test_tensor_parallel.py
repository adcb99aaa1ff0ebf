"""The embedded model held by two ranks, served: one process' tokens, and what is left when a rank or a replica dies."""

import os
import signal
import sys
from pathlib import Path

import openai
import pytest
import torch

from goose_ray.assembly import ReplicaParts, load_parts
from goose_ray.bench.engine.decoders import Case, EngineDecoder, HttpDecoder
from goose_ray.bench.engine.exact import check_greedy, read_cases
from goose_ray.bench.engine.references import ReferenceStore, TransformersReference, weights_id
from goose_ray.bench.prompts import Conversation, encode, read_prompt_files
from goose_ray.config import EngineConfig, GooseConfig
from goose_ray.engine.sampling_params import SamplingParams
from serve.helpers import Server, continued_story, eventually, is_ours

DEPLOYMENT = "goose-tp2.yaml"
SHARED_TOKENS = 32
ENGINE = {"budget": 16, "kv_cache_tokens": 4096}

PROMPTS: tuple[str | Conversation, ...] = (
    Conversation(({"role": "user", "content": "What is the capital of France?"},)),
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "import numpy as np\n\nfor row in range(10):\n    for column in range(10):\n        print(row, column)\n\nfor row",
    "Once upon a time, in a small village by the sea, there lived",
)


def ranks() -> set[int]:
    """Processes of ranks in this session's cluster, which this process has started."""
    return {pid for pid in processes() if command(pid).startswith("ray::TensorParallelRank") and is_ours(pid)}


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def command(pid: int) -> str:
    """Empty where there is no such process, or it has ended and waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def shared_memory() -> set[str]:
    """Segments that ranks on this machine reduce through and that still have a name."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("deepspeed")}


@pytest.fixture(scope="module")
def parts() -> ReplicaParts:
    return load_parts(GooseConfig(engine=EngineConfig(num_threads=1, budget=16, kv_cache_tokens=4096)))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_tokens_are_those_of_one_process(server: Server, parts: ReplicaParts, temperature: float) -> None:
    sampling = SamplingParams(max_tokens=10, temperature=temperature, seed=11)
    cases = [Case(str(i), prompt, encode(prompt, parts.tokenizer, 512)) for i, prompt in enumerate(PROMPTS)]
    plain = EngineDecoder(parts, EngineConfig(num_threads=1, budget=16))
    expected = plain.answers(cases, sampling, policy="autoregressive", concurrency=1, on_answer=lambda: None)
    for policy in ("goose", "anisotropic"):
        found = HttpDecoder(server.url).answers(cases, sampling, policy=policy, concurrency=4, on_answer=lambda: None)
        assert found == expected, policy


@pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: takes minutes")
def test_shared_prompts_are_answered_as_by_transformers(
    server: Server, parts: ReplicaParts, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of each of ten kinds, eight at a time: greedy as `generate` decodes them, seeded as one process does."""
    files = read_prompt_files(sorted((shared_dir / "data" / "prompts").glob("*.jsonl"))[-10:], limit=2)
    cases = read_cases(files, parts.tokenizer, chat=True, limit=384)
    assert len(cases) == 20
    transformers = TransformersReference(parts.path, dtype=torch.float32, device=torch.device("cpu"))
    store = ReferenceStore(transformers, weights=weights_id(parts.path), dtype=torch.float32)
    policies = ("goose", "anisotropic")
    over_http = HttpDecoder(server.url)
    checks = check_greedy(
        over_http, cases, store, transformers, policies=policies, concurrencies=(8,), max_tokens=SHARED_TOKENS
    )
    assert not [difference for check in checks for difference in check.differences]
    sampling = SamplingParams(max_tokens=SHARED_TOKENS, temperature=0.8, seed=23)
    one_process = EngineDecoder(parts, EngineConfig(num_threads=1))
    drawn = one_process.answers(cases, sampling, policy="autoregressive", concurrency=1, on_answer=lambda: None)
    for policy in policies:
        found = over_http.answers(cases, sampling, policy=policy, concurrency=8, on_answer=lambda: None)
        assert found == drawn, policy
    with capsys.disabled():
        tokens = sum(len(reply) for reply in drawn.values())
        sys.stdout.write(
            f"\ntwo ranks: {len(cases)} shared prompts, 8 at a time, {', '.join(policies)}: greedy as transformers, "
            f"{tokens} drawn tokens as one process\n"
        )


def test_an_answer_goes_on_when_a_rank_is_killed_and_no_rank_stays_behind(server: Server) -> None:
    segments = shared_memory()
    before = ranks()
    assert len(before) == 2

    async def kill_a_rank(_: openai.AsyncOpenAI) -> None:
        os.kill(max(before), signal.SIGKILL)

    undisturbed, text = continued_story(server, kill_a_rank, max_tokens=48)
    assert text == undisturbed
    after = ranks()
    assert len(after - before) == 2
    eventually(lambda: not before & ranks(), within_s=30, what="the end of the other rank")
    # the replica that has taken its place
    (replica,) = [r for r in server.get("/v1/goose/acceptance")["replicas"] if r["healthy"]]
    os.kill(replica["pid"], signal.SIGKILL)
    eventually(lambda: not after & ranks(), within_s=30, what="the end of the ranks of a killed replica")
    # the next replica's are there for a moment
    eventually(lambda: shared_memory() <= segments, within_s=30, what="the end of what the ranks shared")
