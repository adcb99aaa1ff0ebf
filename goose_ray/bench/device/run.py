"""All of `goose bench device` in one run: what is loaded when, and the report."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from goose.policies.autoregressive import AutoregressivePolicy
from goose_ray.assembly import ReplicaParts, choose_device, choose_dtype, load_parts
from goose_ray.bench.device.measures import attention_errors, device_name, forward_milliseconds, reply_exactness
from goose_ray.bench.prompts import PromptFile
from goose_ray.bench.replies import Session
from goose_ray.bench.speed.report import speed_json
from goose_ray.bench.speed.speed_run import Contender, SpeedRun
from goose_ray.config import GooseConfig
from goose_ray.runner.backends import available_backends

__all__ = ["DeviceRun", "DeviceSizes"]

# Of trees where no budget is chosen by durations.
_NODES = 16
# What float32 attention may be off by, of the largest output: sums in another order, and no more.
_ROUNDING = 1e-5
_CONTENDERS = (Contender(AutoregressivePolicy.name, 1), Contender("anisotropic", "auto"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """How much is measured where nobody says."""

    # lines of each prompt file, and tokens of a reply
    limit: int
    max_tokens: int
    contexts: tuple[int, ...]
    # forwards of each kind
    rounds: int
    # of the KV pool; the reference that stands for FlexAttention on the CPU looks at all of them for every row
    kv_cache_tokens: int

    @classmethod
    def of(cls, device_type: str) -> "DeviceSizes":
        """On the CPU what takes some minutes with the embedded model."""
        if device_type == "cpu":
            return cls(limit=2, max_tokens=16, contexts=(256,), rounds=3, kv_cache_tokens=1024)
        return cls(limit=4, max_tokens=64, contexts=(512, 4096), rounds=10, kv_cache_tokens=8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRun:
    """`config.engine` has an automatic budget and no prefix cache. One model at a time is on the device, two in
    float32.
    """

    config: GooseConfig
    prompts: Sequence[PromptFile]
    chat: bool
    max_tokens: int
    contexts: Sequence[int]
    rounds: int
    # is told what is done next
    on_stage: Callable[[str], object] = lambda stage: None

    def report(self) -> dict[str, Any]:
        device = choose_device(self.config.device)
        dtype = choose_dtype(self.config.dtype, device)
        backends = {}
        for name in available_backends(device, torch.float32):
            self.on_stage(f"{name}: attention against SDPA")
            errors = attention_errors(name, device=device, dtype=torch.float32)
            backends[name] = {"attention_errors": errors, "replies": self._replies(name)}
        for name in backends:
            # Of FlexAttention the CPU has only the unfused reference.
            if (name == "flex" and device.type == "cpu") or name not in available_backends(device, dtype):
                continue
            self.on_stage(f"{name}: milliseconds of a step")
            parts = self._parts(name, self.config.dtype, budget=_NODES)
            found = forward_milliseconds(parts.runner, contexts=self.contexts, rounds=self.rounds)
            backends[name]["milliseconds"] = _rounded(found)
            parts.runner.shutdown()
        return {
            "device": {
                "name": device_name(device),
                "type": device.type,
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
            },
            "model": self.config.model,
            "dtype": str(dtype).removeprefix("torch."),
            "exact": all(_is_exact(found) for found in backends.values()),
            "backends": backends,
            "speed": self._speed(),
        }

    def _replies(self, name: str) -> dict[str, Any]:
        self.on_stage(f"{name}: replies against plain decoding")
        plain = self._parts("sdpa", "float32", budget=_NODES)
        drafted = self._parts(name, "float32", budget=_NODES)
        limit = min(drafted.runner.spec.max_model_len, self.config.engine.kv_cache_tokens) - self.max_tokens
        sessions = [
            Session.of_dialogue(dialogue, plain.tokenizer, chat=self.chat, limit=limit)
            for file in self.prompts
            for dialogue in file.dialogues
        ]
        found = reply_exactness(drafted.runner, plain.runner, plain.tokenizer, sessions, max_tokens=self.max_tokens)
        plain.runner.shutdown()
        drafted.runner.shutdown()
        return {**asdict(found), "tau": round(found.tau, 2)}

    def _speed(self) -> dict[str, Any]:
        """As it would be served: the best backend, the dtype asked for, a budget by the device's own durations."""
        self.on_stage("tokens per second of anisotropic and autoregressive")
        run = SpeedRun(
            parts=self._parts("auto", self.config.dtype, budget="auto"),
            engine=self.config.engine,
            contenders=_CONTENDERS,
            chat=self.chat,
            max_tokens=self.max_tokens,
            concurrency=1,
        )
        return speed_json(_CONTENDERS, [run.measure(file) for file in self.prompts])

    def _parts(self, backend: str, dtype: str, *, budget: int | Literal["auto"]) -> ReplicaParts:
        # Durations are measured at load for an automatic budget alone.
        engine = self.config.engine.model_copy(update={"budget": budget})
        return load_parts(
            self.config.model_copy(update={"attention_backend": backend, "dtype": dtype, "engine": engine})
        )


def _is_exact(of_backend: dict[str, Any]) -> bool:
    replies = of_backend["replies"]
    within = max(of_backend["attention_errors"].values()) <= _ROUNDING
    return bool(within and replies["equal"] == replies["replies"])


def _rounded(milliseconds: dict[int, dict[int, float]]) -> dict[str, dict[str, float]]:
    return {
        str(context): {str(rows): round(ms, 3) for rows, ms in by_rows.items()}
        for context, by_rows in milliseconds.items()
    }
