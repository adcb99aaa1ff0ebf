"""A model as ranks load it: each reads its own part of the checkpoint and no more.

The module is built without memory; whoever divides it gives memory to a rank's part of it, which is filled here. What a
checkpoint does not hold, such as the frequencies of rotary embeddings, is computed anew. Knows no ranks' processes and
no DeepSpeed.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from goose_ray.errors import ModelLoadError
from goose_ray.models.checkpoint import CheckpointReader, tensor_files
from goose_ray.models.loader import load_model, resolve
from goose_ray.models.shard_division import Division, IndivisibleError, TensorSlice

__all__ = ["CheckpointSource", "Skeleton", "build_skeleton", "restore_buffers"]

_logger = logging.getLogger(__name__)

# Of which tests have compared ranks that read their parts with one process, token for token. Others may have the same
# names and compute otherwise; they are read whole, and compared when they are loaded.
_COMPARED = ("llama", "mistral", "qwen2", "qwen3")
_PROGRESS_PERIOD_S = 10.0


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """Implements `goose_ray.runner.model_source.ModelSource`. `model` is what `models.loader.resolve` takes."""

    model: str
    dtype: torch.dtype

    def parts(self) -> "Skeleton | None":
        """None if its parts cannot be told, and it must be read whole; the log says why.

        Raises ModelLoadError if there is no such model.
        """
        directory = resolve(self.model)
        try:
            model = build_skeleton(_read_config(directory), self.dtype)
            if (directory / "generation_config.json").is_file():
                model.generation_config = GenerationConfig.from_pretrained(directory)
            return Skeleton(model, tensor_files(directory))
        except IndivisibleError as error:
            _logger.warning("every rank reads the whole of %s, whose parts are not known here: %s", self.model, error)
            return None

    def whole(self) -> PreTrainedModel:
        """On the CPU. Raises ModelLoadError."""
        return load_model(resolve(self.model), dtype=self.dtype, device=torch.device("cpu"))


class Skeleton:
    """Implements `goose_ray.runner.model_source.ModelParts`. `model` is on the meta device and of the right dtype.

    Raises IndivisibleError if its layers are not known, or its parameters are not those of the checkpoint.
    """

    def __init__(self, model: PreTrainedModel, files: Mapping[str, Path]) -> None:
        self.model = model
        self._files = files
        self._head_name = _head_name(model, files)
        self._division = Division(model)
        for name in self._division.names:
            if name not in files:
                raise IndivisibleError(f"{name}, which is not in the checkpoint")

    def fill(self, divided: PreTrainedModel, *, rank: int, num_ranks: int) -> None:
        """Reads the rank's parameters, and computes its buffers. `divided` is `model`, once it has memory for the
        rank's part of each layer.

        Raises ModelLoadError naming a tensor that cannot be read, or that was divided otherwise.
        """
        restore_buffers(divided)
        parameters = dict(divided.named_parameters())
        slices = self._division.slices(rank=rank, num_ranks=num_ranks)
        for name, part in slices.items():
            shape = tuple(parameters[name].shape) if name in parameters else None
            if shape != part.shape:
                raise ModelLoadError(
                    f"{type(divided).__name__} is divided otherwise than expected: {name} is {shape}, not {part.shape}"
                )
        # file by file, and within one in the order of the layers
        order = sorted(slices, key=lambda name: str(self._files[name]))
        total = sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
        done, told_s = 0, time.monotonic()
        with torch.no_grad(), CheckpointReader(self._files) as reader:
            for name in order:
                target = parameters[name]
                reader.read_into(target, name, slices[name])
                done += target.numel() * target.element_size()
                if time.monotonic() - told_s > _PROGRESS_PERIOD_S:
                    told_s = time.monotonic()
                    _logger.info("%.1f of %.1f GiB are read", done / 2**30, total / 2**30)
        divided.requires_grad_(False)

    def head_rows(self, first: int, stop: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight [stop - first, hidden_size] and bias [stop - first] of those outputs' embeddings."""
        config = self.model.config.get_text_config()
        weight = torch.empty(stop - first, config.hidden_size, dtype=self.model.dtype, device=device)
        bias_name = self._head_name.removesuffix("weight") + "bias"
        bias = torch.empty(stop - first, dtype=self.model.dtype, device=device) if bias_name in self._files else None
        with CheckpointReader(self._files) as reader:
            reader.read_into(
                weight, self._head_name, TensorSlice((config.vocab_size, config.hidden_size), 0, first, stop)
            )
            if bias is not None:
                reader.read_into(bias, bias_name, TensorSlice((config.vocab_size,), 0, first, stop))
        return weight, bias


def build_skeleton(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The module on the meta device. Raises ModelLoadError if transformers cannot build it."""
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except (ValueError, ImportError, KeyError) as error:
        raise ModelLoadError(f"the config describes no causal language model: {error}") from error
    return model.eval()


def restore_buffers(model: PreTrainedModel) -> None:
    """Computes the buffers that no checkpoint holds, as transformers does when it loads one.

    In float32 where they were so: a division that casts the whole module rounds rotary frequencies too. Raises
    ModelLoadError naming one that is not known how to compute.
    """
    for path, module in model.named_modules():
        names = [name for name in module._buffers if name in module._non_persistent_buffers_set]
        if not names:
            continue
        for parameter in module.parameters(recurse=False):
            # of a scaled embedding, which transformers would otherwise draw anew
            parameter._is_hf_initialized = True
        for name in names:
            buffer = module._buffers[name]
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = torch.full_like(buffer, torch.nan, dtype=_buffer_dtype(module, name, buffer))
        with torch.no_grad():
            model._init_weights(module)
        for name in names:
            buffer = module._buffers[name]
            if buffer is not None and not (buffer.is_floating_point() and bool(torch.isfinite(buffer).all())):
                raise ModelLoadError(f"it is not known how to compute {path}.{name}, which the checkpoint lacks")


def _buffer_dtype(module: nn.Module, name: str, buffer: torch.Tensor) -> torch.dtype:
    return torch.float32 if "inv_freq" in name else buffer.dtype


def _read_config(directory: Path) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadError(f"the config in {directory} cannot be read: {error}") from error
    if config.model_type not in _COMPARED:
        raise IndivisibleError(f"models of type {config.model_type}")
    if getattr(config, "quantization_config", None) is not None:
        raise IndivisibleError("its weights are quantised")
    return config


def _head_name(model: PreTrainedModel, files: Mapping[str, Path]) -> str:
    """The tensor that output embeddings are read from: their own, or the input embeddings' where they are tied."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if not isinstance(head, nn.Linear):
        raise IndivisibleError("its output embeddings")
    names = {id(module): f"{path}.weight" for path, module in model.named_modules()}
    own, shared = names[id(head)], names[id(embeddings)]
    tied = model.config.get_text_config().tie_word_embeddings
    if tied and own in files and shared in files:
        # which of them counts depends on whether they are equal
        raise IndivisibleError(f"{own}, which is tied to {shared} and in the checkpoint too")
    return shared if tied else own
