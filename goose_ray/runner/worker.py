"""One tensor-parallel rank: a process that holds its share of the model, and the only place that knows DeepSpeed.

The methods of `TensorParallelRank` are called on all ranks of a gang, one after the other: place, open_store (rank 0),
join, load, follow. What each raises says what is to be done about it.
"""

import logging
import os
import time
from datetime import timedelta

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
from goose_ray.runner.linear import PackedLinear, SummedLinear, linear_of, packed
from goose_ray.runner.model_source import ModelSource
from goose_ray.runner.rank_leash import Leash, WatchedEngine
from goose_ray.runner.rank_place import GangPlace, RankPlace, tell_environment, unlink_shared_memory
from goose_ray.runner.shard_trial import trial_of_ranks
from goose_ray.runner.sharded_runner import ShardRunner, TorchRankGroup
from goose_ray.runner.step_channel import ChannelAddress, StepFollower
from goose_ray.runner.support import Trial

__all__ = ["TensorParallelRank"]

_logger = logging.getLogger(__name__)

_SHARED_MEMORY_OP = "deepspeed_shm_comm"


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
        tell_environment(place)
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
            unlink_shared_memory(place)

    def load(
        self,
        source: ModelSource,
        *,
        model_id: str,
        num_slots: int,
        max_model_len: int | None,
        attention_backend: str,
    ) -> ModelSpec:
        """Reads this rank's share of the model, or all of it and keeps its share, and tries it.

        Raises ModelLoadError naming what is not supported, ConfigError if the pool cannot be had or the model cannot be
        divided among the ranks.
        """
        started_s = time.monotonic()
        ranks = TorchRankGroup()
        parts = source.parts()
        model = source.whole() if parts is None else parts.model
        spec = inspect_model(model, model_id=model_id, num_slots=num_slots, max_model_len=max_model_len)
        check_divisible(model.config, ranks.size)
        name, dtype = type(model).__name__, model.dtype
        backend = new_backend(attention_backend, self._device, dtype)
        model.eval()
        model.requires_grad_(False)
        trial = Trial.with_own_attention(model) if parts is None else None
        head = LanguageModelHead(model, rank=ranks.rank, num_ranks=ranks.size)
        model = _divided(model, ranks.size)
        if parts is not None:
            parts.fill(model, rank=ranks.rank, num_ranks=ranks.size)
            last_token = min(head.first_token + head.width, head.vocab_size)
            head.fill(*parts.head_rows(head.first_token, last_token, self._device))
        head.to(self._device)
        _pack_divided(model)
        _logger.info("rank %d: its share is read after %.1f s", self._rank, time.monotonic() - started_s)
        try:
            if trial is None:
                trial = trial_of_ranks(model, head, ranks)
            forward = ModelForward(model, spec=spec, backend=backend)
            self._runner = ShardRunner(forward, head, ranks)
            _try(self._runner, trial, name, dtype)
        except (RuntimeError, ModelLoadError) as error:
            raise ModelLoadError(
                f"{name} among {ranks.size} ranks: {error}. If it runs with tensor_parallel_size 1, DeepSpeed does not "
                "divide its layers right (fused projections, as in Phi-3)"
            ) from error
        _logger.info("rank %d: its share is ready after %.1f s", self._rank, time.monotonic() - started_s)
        return spec

    def follow(self, address: ChannelAddress, engine: WatchedEngine | None) -> None:
        """Runs the engine's steps until it says stop. Ends the process if the engine goes without a word."""
        if self._runner is None:
            raise ModelLoadError("this rank has no model to run steps with")
        leash = Leash.connect(address, self._rank, engine, node_id=ray.get_runtime_context().get_node_id())
        StepFollower.connect(address, self._rank).follow(self._runner.execute)
        leash.join()
        self._runner.release()
        self._runner = None


def _load_shared_memory_op() -> object:
    from deepspeed.accelerator import get_accelerator

    return get_accelerator().create_op_builder("ShareMemCommBuilder").load()


def _divided(model: PreTrainedModel, num_ranks: int) -> PreTrainedModel:
    """The model with this rank's share of every linear layer, by DeepSpeed's automatic tensor parallelism.

    The output embeddings are taken off: DeepSpeed would sum logits of the whole vocabulary over the ranks. A model on
    the meta device comes back with memory for this rank's share and no values in it.
    """
    import deepspeed

    model.set_output_embeddings(torch.nn.Identity())
    buffers = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if not buffer.is_meta
    ]
    try:
        engine = deepspeed.init_inference(
            model, tensor_parallel={"tp_size": num_ranks}, dtype=model.dtype, replace_with_kernel_inject=False
        )
    except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelLoadError(
            f"DeepSpeed cannot divide {type(model).__name__} among {num_ranks} ranks: {error}"
        ) from error
    divided: PreTrainedModel = engine.module
    for module, name, buffer in buffers:
        # Cast with the weights, rotary frequencies would be rounded.
        setattr(module, name, buffer.to(divided.device))
    return divided


def _pack_divided(model: PreTrainedModel) -> None:
    """Has oneDNN multiply the shares of float32 layers on the CPU, as it does the whole ones of a single process.

    DeepSpeed's own layers multiply as torch does by default, which costs twice as much from two rows on.
    """
    from deepspeed import comm
    from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer

    def summed(product: torch.Tensor) -> torch.Tensor:
        comm.inference_all_reduce(product)
        return product

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            # Subclasses divide, or gather, in other ways; and a share of a small layer may be nothing at all.
            is_rows = type(child) is LinearLayer and not child.gather_output
            if not (is_rows or type(child) is LinearAllreduce) or not child.weight.numel():
                continue
            bias = None if child.bias is None else child.bias.detach()
            product = packed(linear_of(child.weight.detach().contiguous(), bias if is_rows else None))
            if isinstance(product, PackedLinear):
                setattr(parent, name, product if is_rows else SummedLinear(product, bias, summed))


def _try(runner: ShardRunner, trial: Trial, name: str, dtype: torch.dtype) -> None:
    """Raises ModelLoadError unless the ranks together compute what the undivided model does."""
    first, second = (runner.logits(batch) for batch in trial.steps())
    if first is not None and second is not None:
        trial.check(name, (first.cpu(), second.cpu()), dtype)
