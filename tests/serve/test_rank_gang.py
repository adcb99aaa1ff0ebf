"""Models spread over ranks in processes of their own: they say what one process says, and leave nothing when one dies.

Real Ray actors, placement groups and DeepSpeed. The families share one gang, of two ranks; `make ranks` has four,
and two nodes.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from engine_helpers import run
from fakes import FakeTokenizer
from runner_steps import Part, build_step
from tiny_models import VOCAB_SIZE, tiny_model

from goose.speculator import Speculator
from goose_ray.config import EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.request import GenerationRequest
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.engine.step import ModelRunner
from goose_ray.errors import ConfigError, EngineDeadError, ModelLoadError
from goose_ray.models.shard_source import CheckpointSource
from goose_ray.runner.local import LocalRunner
from goose_ray.runner.rank_bundles import RankBundles
from goose_ray.runner.rank_gang import GangOptions, RankGang
from goose_ray.runner.worker_group import WorkerGroup
from serve.helpers import eventually
from serve.two_hosts import two_hosts, why_no_hosts

NUM_TOKENS = 20
NUM_SLOTS = 600
RANKS = int(os.environ.get("GOOSE_RANKS", "2"))
# Of three key-value heads one rank of two has two, the other one.
HEADS = {
    2: {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8},
    4: {"num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 8},
}[RANKS]


def start_gang(num_ranks: int, strategy: str = "PACK") -> RankGang:
    bundles = RankBundles.find(num_ranks, device="cpu", strategy=strategy, cpus_per_rank=0.1)
    return RankGang(GangOptions(num_ranks=num_ranks, device="cpu", num_threads=1, shares_cores=True), bundles)


@pytest.fixture(scope="module")
def gang(ray_address: str) -> Iterator[RankGang]:
    gang = start_gang(RANKS)
    yield gang
    gang.kill()


def saved(folder: Path, family: str, **overrides: int) -> CheckpointSource:
    """What loads the tiny model, in any process."""
    tiny_model(family, **{**HEADS, **overrides}).save_pretrained(folder)
    return CheckpointSource(str(folder), torch.float32)


def spread(gang: RankGang, source: CheckpointSource, *, silence_s: float = 60.0) -> WorkerGroup:
    return WorkerGroup(
        gang,
        source,
        model_id="tiny",
        num_slots=NUM_SLOTS,
        max_model_len=None,
        attention_backend="auto",
        silence_s=silence_s,
    )


def replies(runner: ModelRunner, policy: str) -> list[list[int]]:
    """Greedy and sampled requests, with limits, rules and log-probabilities, all at once."""
    budget = 1 if policy == "autoregressive" else 12
    config = EngineConfig(policy=policy, budget=budget, max_batch_rows=48)
    engine = Engine(runner, Speculator(policy=policy, budget=budget, harvest_k=4), FakeTokenizer(), config)
    draw = np.random.default_rng(3)
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"temperature": 1.1, "top_p": 0.8},
        {"temperature": 0.8, "top_k": 9, "repetition_penalty": 1.3},
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.0, "prompt_logprobs": 1},
    ]
    requests = [
        GenerationRequest(
            request_id=str(number),
            prompt_token_ids=tuple(draw.integers(0, VOCAB_SIZE, 4 + 9 * number).tolist()),
            sampling=SamplingParams(max_tokens=NUM_TOKENS, seed=number, **more),
        )
        for number, more in enumerate(options)
    ]
    found = [reply.token_ids for reply in run(engine, *requests).values()]
    assert engine.stats().num_draft_errors == 0
    return found


def assert_same_as_one_process(gang: RankGang, folder: Path, family: str) -> None:
    runner = spread(gang, saved(folder, family))
    local = LocalRunner(tiny_model(family, **HEADS), model_id="tiny", num_slots=NUM_SLOTS)
    expected = replies(local, "autoregressive")
    prompt = np.random.default_rng(3).integers(0, VOCAB_SIZE, 4)
    greedy = tiny_model(family, **HEADS).generate(
        torch.from_numpy(prompt)[None], do_sample=False, max_new_tokens=NUM_TOKENS
    )
    assert expected[0] == greedy[0, 4:].tolist()
    try:
        for policy in ("goose", "anisotropic"):
            assert replies(runner, policy) == expected, policy
    finally:
        assert runner.release() is gang


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_ranks_say_what_one_process_says(gang: RankGang, tmp_path: Path, family: str) -> None:
    assert_same_as_one_process(gang, tmp_path, family)


@pytest.fixture
def second_node(ray_address: str) -> Iterator[None]:
    """Another node of the cluster, on this machine."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--address", ray_address, "--block"]
    command += ["--num-cpus", "1", "--object-store-memory", str(100 * 2**20)]
    for option in ("--dashboard-agent-listen-port", "--dashboard-agent-grpc-port", "--metrics-export-port"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            command += [option, str(probe.getsockname()[1])]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len([n for n in ray.nodes() if n["Alive"]]) == 2, within_s=120, what="a second node")
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: a second node would be in the way of others")
def test_ranks_on_two_nodes_say_what_one_process_says(second_node: None, tmp_path: Path) -> None:
    gang = start_gang(2, "STRICT_SPREAD")
    try:
        assert gang.num_hosts == 2
        assert_same_as_one_process(gang, tmp_path, "llama")
    finally:
        gang.kill()


def check_two_hosts(ray_address: str, folder: str) -> None:
    """Run on one of two hosts that are Ray nodes."""
    ray.init(ray_address, log_to_driver=False, namespace="tests")
    eventually(lambda: len([n for n in ray.nodes() if n["Alive"]]) == 2, within_s=120, what="a second node")
    gang = start_gang(2, "STRICT_SPREAD")
    try:
        assert len(gang.addresses) == 2
        assert_same_as_one_process(gang, Path(folder), "llama")
    finally:
        gang.kill()


@pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: starts a cluster of its own")
def test_ranks_on_two_hosts_say_what_one_process_says(tmp_path: Path) -> None:
    """Hosts that share neither loopback nor memory: what is bound to the wrong address is not found."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus", "1"]
    start += ["--object-store-memory", str(100 * 2**20)]
    # Ray guards clusters that `ray start` makes.
    guard = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with two_hosts(guard) as hosts, contextlib.ExitStack() as running:
        ray_address = f"{hosts[0].address}:6379"
        roles = (["--head", "--include-dashboard", "false"], ["--address", ray_address])
        for host, role in zip(hosts, roles, strict=True):
            log = running.enter_context((tmp_path / f"{host.address}.log").open("wb"))
            node = host.start([*start, *role, "--node-ip-address", host.address], stdout=log, stderr=log)
            running.callback(node.wait, 60)
            running.callback(node.terminate)
        script = "import sys; from serve.test_rank_gang import check_two_hosts; check_two_hosts(*sys.argv[1:])"
        hosts[0].environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        hosts[0].run([sys.executable, "-c", script, ray_address, str(tmp_path)])


def test_what_cannot_be_divided_is_refused(gang: RankGang, tmp_path: Path) -> None:
    """By the rank, with the cause; the gang can load another model."""
    options: dict[str, Any] = {"model_id": "tiny", "num_slots": 64, "max_model_len": None, "attention_backend": "auto"}
    with pytest.raises(ModelLoadError, match=r"rank \d: .*Phi3ForCausalLM.*(Phi-3|do not fit)"):
        gang.call("load", saved(tmp_path / "phi3", "phi3"), **options)
    with pytest.raises(ConfigError, match=r"rank \d: tensor_parallel_size must be at most 1"):
        gang.call("load", saved(tmp_path / "one", "llama", num_key_value_heads=1), **options)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_rank_that_stops_is_the_end_of_the_gang(ray_address: str, tmp_path: Path) -> None:
    """In the middle of a step, which the other rank would wait in for ever."""
    segments = set(os.listdir("/dev/shm"))
    gang = start_gang(2)
    pids = gang.pids
    runner = spread(gang, saved(tmp_path, "llama"), silence_s=3.0)
    batch = build_step([Part(chain=[1], drafts=([2, 3], [0, 1]))], np.arange(3))
    runner.execute(batch)
    runner.check_health()
    failure: list[Exception] = []

    def step_until_it_fails() -> None:
        try:
            while True:
                runner.execute(batch)
        except EngineDeadError as error:
            failure.append(error)

    stepping = threading.Thread(target=step_until_it_fails)
    stepping.start()
    os.kill(pids[1], signal.SIGSTOP)
    stepping.join(60)
    assert not stepping.is_alive()
    assert failure
    eventually(lambda: not any(is_alive(pid) for pid in pids), within_s=30, what="the end of both ranks")
    with pytest.raises(EngineDeadError, match="rank 1 has not given a sign of life"):
        runner.check_health()
    runner.shutdown()
    left = set(os.listdir("/dev/shm")) - segments
    assert not [name for name in left if name.startswith("deepspeed")]


class Holder:
    """A gang's, as a replica is."""

    def __init__(self, source: CheckpointSource) -> None:
        self._runner = spread(start_gang(2), source, silence_s=3.0)

    def pids(self) -> list[int]:
        """Its own and those of its ranks."""
        return [os.getpid(), *self._runner.rank_pids]


@pytest.mark.skipif("GOOSE_RANKS" not in os.environ, reason="`make ranks`: one gang more")
def test_an_actor_that_is_stopped_ends_with_its_ranks(ray_address: str, tmp_path: Path) -> None:
    """Long before anybody else would notice."""
    finds_this = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}}
    holder = ray.remote(num_cpus=0.1, runtime_env=finds_this)(Holder).remote(saved(tmp_path, "llama"))
    pids = ray.get(holder.pids.remote())
    assert len(pids) == 3
    os.kill(pids[0], signal.SIGSTOP)
    eventually(lambda: not any(is_alive(pid) for pid in pids), within_s=30, what="the end of all three")
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(holder.pids.remote())
