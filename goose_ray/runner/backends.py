"""Attention backends by name: which there are, which suits a device, and what one lacks here."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from goose_ray.errors import ConfigError
from goose_ray.runner.attention import AttentionBackend
from goose_ray.runner.sdpa import SdpaBackend

__all__ = ["BACKENDS", "available_backends", "new_backend"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """`lacking` says what is missing for a device and dtype, in words, or None."""

    build: Callable[[torch.device], AttentionBackend]
    lacking: Callable[[torch.device, torch.dtype], str | None]


def new_backend(name: str, device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """`auto` is SDPA on the CPU, and elsewhere the first of `BACKENDS` that lacks nothing.

    Raises ConfigError naming what is missing.
    """
    if name == "auto":
        name = "sdpa" if device.type == "cpu" else available_backends(device, dtype)[0]
    if name not in BACKENDS:
        raise ConfigError(f"attention_backend must be auto or one of {', '.join(BACKENDS)}, not {name!r}")
    entry = BACKENDS[name]
    if lacking := entry.lacking(device, dtype):
        raise ConfigError(f"attention_backend {name} needs {lacking}: use auto or sdpa, which runs everywhere")
    return entry.build(device)


def available_backends(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """Names of those that run here, the best for an accelerator first."""
    return tuple(name for name, entry in BACKENDS.items() if entry.lacking(device, dtype) is None)


def _flex(device: torch.device) -> AttentionBackend:
    from goose_ray.runner.flex import FlexBackend

    return FlexBackend(device)


def _flex_lacks(device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype == torch.float16:
        # What overflowed in a foreign slot of a block is masked by a zero, and zero times infinity is not.
        return "dtype bfloat16 or float32, not float16"
    if device.type != "cuda":
        return None
    if find_spec("triton") is None:
        return "the package triton, which torch's builds for CUDA bring along"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"a GPU of compute capability 8.0 or more, not {capability[0]}.{capability[1]}"
    return None


BACKENDS: dict[str, _Entry] = {
    "flex": _Entry(_flex, _flex_lacks),
    "sdpa": _Entry(lambda device: SdpaBackend(), lambda device, dtype: None),
}
