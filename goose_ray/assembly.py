"""Puts one replica's parts together: model, runner, speculator, engine. Serve replica and benches use the same.

Knows every floor below and decides nothing but device, dtype and threads.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig

from goose.anisotropic.calibration_file import CalibrationFile
from goose.cost import CostModel
from goose.errors import UnknownNameError
from goose.policies.registry import POLICIES, calibrated
from goose.speculator import Speculator
from goose_ray.config import EngineConfig, GooseConfig
from goose_ray.engine.engine import Engine
from goose_ray.engine.loop import EngineLoop
from goose_ray.engine.step import ModelRunner
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.engine.warm_up import measure_cost
from goose_ray.errors import ConfigError
from goose_ray.models.calibrations import load_calibration, require_vocabulary
from goose_ray.models.loader import find, load_model, require_name, resolve
from goose_ray.models.tokenizer import load_tokenizer
from goose_ray.runner.backends import new_backend
from goose_ray.runner.divisibility import check_divisible
from goose_ray.runner.local import LocalRunner
from goose_ray.runner.support import longest_sequence
from goose_ray.telemetry.starting_point import StartingPoint, joined_start

__all__ = [
    "ReplicaParts",
    "build_engine",
    "check_model_fits",
    "choose_device",
    "choose_dtype",
    "load_parts",
    "new_engine",
]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """What is loaded once in a replica's life. Engines above it may follow one another, never run side by side."""

    path: Path
    tokenizer: Tokenizer
    runner: ModelRunner
    # durations of steps as measured when it was loaded; None where nothing asks for them
    cost: CostModel | None = None


def build_engine(config: GooseConfig, start: StartingPoint | None = None) -> EngineLoop:
    """The engine loop of one replica, not started. Fetches and converts the model if need be, and compiles what any
    policy needs that a request may name. `start` is what other replicas have learned, besides the calibration.

    Raises ConfigError naming the field, ModelLoadError if the model cannot be had or run.
    """
    _logger.info("preparing the policy %s: compiled at the first start on a machine", config.engine.policy)
    speculator = _speculator(config.engine, config.model)  # first: a wrong name shows before the model is loaded
    parts = load_parts(config)
    if start is not None:
        calibration = load_calibration(config.engine.calibration, config.model)
        known = joined_start(calibration, start, vocab_size=parts.runner.spec.vocab_size)
        speculator = _new_speculator(config.engine, known)
    # Else the first request that names a policy would do it in the engine's thread, and all others would wait.
    _logger.info("preparing the other policies: likewise")
    speculator.prepare()
    engine = _engine(parts, speculator, config.engine, time.monotonic)
    loop = EngineLoop(engine, stall_timeout_s=config.engine.stall_timeout_s)
    # Nor should the first that asks for a structured output wait for what all of those share.
    loop.prepare()
    return loop


def check_model_fits(config: GooseConfig) -> None:
    """Raises ModelLoadError for a name that is no model's, ConfigError for what a model here is known to lack.
    Loads and fetches nothing.
    """
    require_name(config.model)
    wanted = config.engine.max_model_len
    # To look a GGUF file up takes reading it from end to end.
    path = None if Path(config.model).is_file() else find(config.model)
    if path is None or (wanted is None and config.tensor_parallel_size == 1):
        return
    try:
        of_model = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        # loading says what is wrong
        return
    longest_sequence(of_model, wanted)
    check_divisible(of_model, config.tensor_parallel_size)


def load_parts(config: GooseConfig, *, clock: Callable[[], float] = time.monotonic) -> ReplicaParts:
    """Loads model and tokenizer; with an automatic budget measures what steps take, in about ten seconds.

    Sets this process's number of CPU threads if the configuration names one. `clock` is what durations are measured by.
    """
    if config.engine.num_threads is not None:
        torch.set_num_threads(config.engine.num_threads)
    _logger.info("loading %s", config.model)
    path = resolve(config.model)
    tokenizer = load_tokenizer(path)
    runner = _local_runner(config, path) if config.tensor_parallel_size == 1 else _gang(config)
    return ReplicaParts(path, tokenizer, runner, _measured(runner, config.engine, clock))


def new_engine(parts: ReplicaParts, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic) -> Engine:
    """An engine that has seen nothing yet: no requests, no drafts, no counts."""
    return _engine(parts, _speculator(config, parts.runner.spec.model_id), config, clock)


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU. Raises ConfigError."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda, not {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but this process sees no CUDA device: use cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on the CPU, where lossless means token for token, and bfloat16 on CUDA.

    Warns of 16 bits on the CPU: a forward is slower there, and likely tokens that are nearly equal may change places
    with the shape of a forward.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype: torch.dtype = getattr(torch, name)
    if device.type == "cpu" and dtype != torch.float32:
        _logger.warning(
            "dtype %s on the CPU: replies may differ from plain decoding where two tokens are nearly as likely, and "
            "linear layers are not packed; use float32",
            name,
        )
    return dtype


def _local_runner(config: GooseConfig, path: Path) -> ModelRunner:
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    # first: what it lacks shows before the model is loaded
    backend = new_backend(config.attention_backend, device, dtype)
    return LocalRunner(
        load_model(path, dtype=dtype, device=device),
        model_id=config.model,
        num_slots=config.engine.kv_cache_tokens,
        max_model_len=config.engine.max_model_len,
        backend=backend,
    )


def _gang(config: GooseConfig) -> ModelRunner:
    # Nothing else here needs Ray, which is slow to import.
    from goose_ray.gang import start_gang

    # The ranks', not this process': only `build_app` can tell whether they have GPUs.
    device = "cuda" if config.device == "cuda" else "cpu"
    return start_gang(config, device=device, dtype=choose_dtype(config.dtype, torch.device(device)))


def _engine(parts: ReplicaParts, speculator: Speculator, config: EngineConfig, clock: Callable[[], float]) -> Engine:
    spec = parts.runner.spec
    require_vocabulary(load_calibration(config.calibration, spec.model_id), spec.model_id, spec.vocab_size)
    cost = None
    if config.budget == "auto" and parts.cost is not None:
        # What one engine learns is not the next one's.
        cost = CostModel.load(parts.cost.snapshot())
    return Engine(parts.runner, speculator, parts.tokenizer, config, cost=cost, clock=clock)


def _measured(runner: ModelRunner, config: EngineConfig, clock: Callable[[], float]) -> CostModel | None:
    if config.budget != "auto":
        return None
    _logger.info("measuring how long steps of each size take")
    return measure_cost(
        runner,
        max_rows=config.max_batch_rows,
        max_sequences=config.max_running_requests,
        harvest_k=config.harvest_k,
        stall_timeout_s=config.stall_timeout_s,
        clock=clock,
    )


def _speculator(config: EngineConfig, model: str) -> Speculator:
    return _new_speculator(config, load_calibration(config.calibration, model))


def _new_speculator(config: EngineConfig, calibration: CalibrationFile | None) -> Speculator:
    try:
        return Speculator(
            policy=config.policy,
            budget=None if config.budget == "auto" else config.budget,
            harvest_k=config.harvest_k,
            pool_tokens=config.pool_tokens,
            num_threads=config.num_threads or 1,
            builders=POLICIES if calibration is None else calibrated(calibration),
        )
    except UnknownNameError as error:
        raise ConfigError(f"engine.policy: {error}") from error
