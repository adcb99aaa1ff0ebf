"""One tensor-parallel rank: a process that holds its share of the model, and the only place that knows DeepSpeed.

The methods of `TensorParallelRank` are called on all ranks of a gang, one after the other: place, open_store (rank 0),
join, load, follow. What each raises says what is to be done about it.
"""

import fcntl
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import ray
import torch
import torch.distributed
from torch._C._distributed_c10d import TCPStore
from transformers import PreTrainedModel

from goose_ray.engine.step import ModelSpec
from goose_ray.errors import ConfigError, ModelLoadError
from goose_ray.runner.backends import new_backend
from goose_ray.runner.comm_build import build_shared_memory_op
from goose_ray.runner.divisibility import check_divisible
from goose_ray.runner.forward import ModelForward, inspect_model
from goose_ray.runner.head import LanguageModelHead
from goose_ray.runner.rank_leash import Leash
from goose_ray.runner.sharded_runner import ShardRunner, TorchRankGroup
from goose_ray.runner.step_channel import ChannelAddress, StepFollower
from goose_ray.runner.support import Trial

__all__ = ["GangPlace", "RankPlace", "TensorParallelRank"]

_logger = logging.getLogger(__name__)

_SHARED_MEMORY_OP = "deepspeed_shm_comm"
# Linux: "get interface address"
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank's process is."""

    node_id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlace:
    """A rank's place among the others."""

    rank: int
    num_ranks: int
    # its number among the ranks of its host, and how many those are
    local_rank: int
    num_local: int
    # where rank 0 holds the store
    host: str
    port: int
    timeout_s: float


class TensorParallelRank:
    """Lives in a process of its own. `device` is cpu or cuda; of CUDA devices it sees one."""

    def __init__(self, rank: int, device: str, num_threads: int) -> None:
        self._rank = rank
        self._device = torch.device(device)
        self._num_threads = num_threads
        self._store: TCPStore | None = None
        self._runner: ShardRunner | None = None

    def place(self) -> RankPlace:
        """Raises ConfigError if the device is not there."""
        torch.set_num_threads(self._num_threads)
        if self._device.type == "cuda" and torch.cuda.device_count() != 1:
            raise ConfigError(
                f"this rank sees {torch.cuda.device_count()} CUDA devices instead of one: give its bundle of the "
                "placement group one GPU, or say device: cpu"
            )
        return RankPlace(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    def open_store(self, host: str, timeout_s: float) -> int:
        """Rank 0 only: the port of the store where the ranks meet, which this process holds from now on."""
        try:
            self._store = TCPStore(
                host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
            )
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"no port of {host} could be opened for the ranks to meet at: {error}") from error
        return int(self._store.port)

    def join(self, place: GangPlace) -> None:
        """Meets the other ranks. Raises ModelLoadError naming what is missing on this machine."""
        _tell_environment(place)
        timeout = timedelta(seconds=place.timeout_s)
        on_cpu = self._device.type == "cpu"
        shares_memory = on_cpu and place.num_local == place.num_ranks
        if shares_memory:
            build_shared_memory_op(_load_shared_memory_op)
        try:
            if self._store is None:
                self._store = TCPStore(place.host, place.port, is_master=False, timeout=timeout)
            torch.distributed.init_process_group(
                "gloo" if on_cpu else "nccl",
                store=self._store,
                rank=place.rank,
                world_size=place.num_ranks,
                timeout=timeout,
                device_id=None if on_cpu else torch.device("cuda", 0),
            )
        except (RuntimeError, OSError) as error:
            raise ModelLoadError(
                f"the ranks did not meet at {place.host}:{place.port}: {error}. Hosts of one replica must reach each "
                "other on any port"
            ) from error
        import deepspeed

        if not shares_memory:
            # DeepSpeed would take it all the same, and read what nobody has mapped.
            deepspeed.ops.__compatible_ops__[_SHARED_MEMORY_OP] = False
        deepspeed.init_distributed(dist_backend="gloo" if on_cpu else "nccl", verbose=False)
        torch.distributed.barrier()
        if shares_memory:
            _unlink_shared_memory(place)

    def load(
        self,
        load_model: Callable[[], PreTrainedModel],
        *,
        model_id: str,
        num_slots: int,
        max_model_len: int | None,
        attention_backend: str,
    ) -> ModelSpec:
        """Loads the model, keeps this rank's share, and tries it.

        `load_model` gives the whole model, on the CPU. Raises ModelLoadError naming what is not supported, ConfigError
        if the pool cannot be had or the model cannot be divided among the ranks.
        """
        started_s = time.monotonic()
        ranks = TorchRankGroup()
        model = load_model()
        spec = inspect_model(model, model_id=model_id, num_slots=num_slots, max_model_len=max_model_len)
        check_divisible(model.config, ranks.size)
        name, dtype = type(model).__name__, model.dtype
        backend = new_backend(attention_backend, self._device, dtype)
        model.eval()
        model.requires_grad_(False)
        trial = Trial.with_own_attention(model)
        head = LanguageModelHead(model, rank=ranks.rank, num_ranks=ranks.size)
        _logger.info("rank %d: the model is read after %.1f s", self._rank, time.monotonic() - started_s)
        model = _divided(model, ranks.size)
        try:
            forward = ModelForward(model, spec=spec, backend=backend)
            self._runner = ShardRunner(forward, head.to(self._device), ranks)
            _try(self._runner, trial, name, dtype)
        except RuntimeError as error:
            raise ModelLoadError(
                f"{name} cannot be divided among {ranks.size} ranks, its layers do not fit together: {error}"
            ) from error
        _logger.info("rank %d: its share is ready after %.1f s", self._rank, time.monotonic() - started_s)
        return spec

    def follow(self, address: ChannelAddress) -> None:
        """Runs the engine's steps until it says stop. Ends the process if the engine goes without a word."""
        if self._runner is None:
            raise ModelLoadError("this rank has no model to run steps with")
        leash = Leash.connect(address, self._rank)
        StepFollower.connect(address, self._rank).follow(self._runner.execute)
        leash.join()
        self._runner.release()
        self._runner = None


def _load_shared_memory_op() -> object:
    from deepspeed.accelerator import get_accelerator

    return get_accelerator().create_op_builder("ShareMemCommBuilder").load()


def _divided(model: PreTrainedModel, num_ranks: int) -> PreTrainedModel:
    """The model with this rank's share of every linear layer, by DeepSpeed's automatic tensor parallelism.

    The output embeddings are taken off: DeepSpeed would sum logits of the whole vocabulary over the ranks.
    """
    import deepspeed

    model.set_output_embeddings(torch.nn.Identity())
    try:
        engine = deepspeed.init_inference(
            model, tensor_parallel={"tp_size": num_ranks}, dtype=model.dtype, replace_with_kernel_inject=False
        )
    except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelLoadError(
            f"DeepSpeed cannot divide {type(model).__name__} among {num_ranks} ranks: {error}"
        ) from error
    divided: PreTrainedModel = engine.module
    return divided


def _try(runner: ShardRunner, trial: Trial, name: str, dtype: torch.dtype) -> None:
    """Raises ModelLoadError unless the ranks together compute what the undivided model does."""
    first, second = (runner.logits(batch) for batch in trial.steps())
    if first is not None and second is not None:
        try:
            trial.check(name, (first.cpu(), second.cpu()), dtype)
        except ModelLoadError as error:
            raise ModelLoadError(
                f"{error}. If it runs with tensor_parallel_size 1, DeepSpeed does not divide its layers right (fused "
                "projections, as in Phi-3)"
            ) from error


def _tell_environment(place: GangPlace) -> None:
    """What DeepSpeed and torch.distributed look up in the environment, for this process alone."""
    os.environ.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.num_ranks),
        LOCAL_RANK=str(place.local_rank),
        # The shared-memory collective is set up if this is the number of ranks, and crashes if it was not.
        LOCAL_SIZE=str(place.num_local),
        MASTER_ADDR=place.host,
        MASTER_PORT=str(place.port),
    )
    interface = _interface_of(place)
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def _interface_of(place: GangPlace) -> str | None:
    """The network interface by which other hosts reach this one; gloo would go by the host's name, often loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((place.host, place.port))
        except OSError:
            return None
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return None


def _unlink_shared_memory(place: GangPlace) -> None:
    """All ranks of this host have opened each other's segment: nameless, it is freed with the last of them."""
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{place.host}_{place.port}_{place.rank}"
    (Path("/dev/shm") / name).unlink(missing_ok=True)
