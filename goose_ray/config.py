"""The deployment's configuration: every option of the system, its default and its meaning, once.

The only module that reads the environment. Knows nothing about how the options are used.
"""

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from goose.policies.registry import POLICIES
from goose_ray.config_problem import first_problem
from goose_ray.errors import ConfigError

__all__ = ["EMBEDDED_MODEL", "GRACEFUL_SHUTDOWN_S", "MAX_ONGOING_REQUESTS", "EngineConfig", "GooseConfig", "cache_dir"]

# What answers under way have when replicas are to go, where no deployment says otherwise.
GRACEFUL_SHUTDOWN_S = 30.0
MAX_ONGOING_REQUESTS = 32

EMBEDDED_MODEL = "smollm2-135m-instruct"
# Keys are hashed without salt, so they must not be words.
_LEAST_KEY_CHARS = 16


def cache_dir() -> Path:
    """Where converted models live: `GOOSE_CACHE`, else the platform's cache path."""
    configured = os.environ.get("GOOSE_CACHE")
    if configured:
        return Path(configured).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("goose_ray")


class EngineConfig(BaseModel):
    """One replica's engine."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_model_len: int | None = Field(
        default=None, ge=16, description="Longest prompt + output in tokens; default: the model's."
    )
    kv_cache_tokens: int = Field(default=32768, ge=64, description="KV slots in the pool, in tokens.")
    prefix_cache: bool = Field(
        default=True,
        description="Keep the KV of past prompts and replies, until its room is needed, for requests that begin alike.",
    )
    max_batch_rows: int = Field(default=512, ge=8, description="Rows (prefill and tree nodes) in one forward.")
    max_running_requests: int = Field(
        default=32, ge=1, description="Sequences in one batch; at most max_batch_rows are."
    )
    max_waiting_requests: int = Field(default=256, ge=0, description="Requests that may wait; more are answered 429.")
    policy: str = Field(
        default="anisotropic",
        description="Tree policy: anisotropic, autoregressive, balanced, chain, goose, recycling or suffix.",
    )
    budget: int | Literal["auto"] = Field(
        default="auto",
        description="Nodes verified per sequence and step, anchor included; auto: in each step as many, over the whole "
        "batch, as give the most tokens a second (policy anisotropic; 60 with others).",
    )
    calibration: Literal["auto", "none"] | Annotated[Path, Field(strict=False)] = Field(
        default="auto",
        description="File of `goose calibrate`, on every node, that anisotropic starts from; auto: goose's own for the "
        "model if there is one (the embedded model has); none: the prior for any model.",
    )
    harvest_k: int = Field(default=10, ge=1, le=64, description="Successors kept per harvested position.")
    pool_tokens: int = Field(
        default=65536, ge=0, description="Past outputs kept for the policy suffix, in tokens; the oldest leave first."
    )
    num_threads: int | None = Field(
        default=None, ge=1, description="CPU threads of a forward; default: see `replicas_per_node`."
    )
    stall_timeout_s: float = Field(
        default=300.0, gt=0, description="A step that takes longer than this makes the replica unhealthy, in seconds."
    )
    step_log: bool = Field(default=False, description="Log the composition of every step.")
    trace_tokens: bool = Field(
        default=False,
        description="Show the tokens of recent trees on the dashboard: they are parts of what users wrote and read.",
    )

    @field_validator("budget", mode="plain")
    @classmethod
    def _nodes_or_auto(cls, value: Any) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError("budget must be 1 or more nodes, or auto")
        return value

    def check_choices(self) -> None:
        """Raises ConfigError for a value that no engine could be built with, whatever the model."""
        if self.policy not in POLICIES:
            raise ConfigError(f"engine.policy: must be one of {', '.join(sorted(POLICIES))}, not {self.policy!r}")
        if "budget" in self.model_fields_set and self.budget != "auto" and self.budget > self.max_batch_rows:
            raise ConfigError(
                f"engine.budget: must be at most engine.max_batch_rows ({self.max_batch_rows}) or auto, "
                f"not {self.budget}"
            )


class GooseConfig(BaseModel):
    """The arguments of `goose_ray.app:build_app`, as they stand under `args:` in the YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str = Field(default=EMBEDDED_MODEL, min_length=1, description="Embedded model, hub id or local path.")
    served_model_name: str | None = Field(default=None, min_length=1, description="Name in the API; default: `model`.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="float32, bfloat16, float16 or auto (float32 on CPU)."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="cpu, cuda or auto.")
    attention_backend: Literal["auto", "flex", "sdpa"] = Field(
        default="auto", description="flex (torch's FlexAttention), sdpa or auto (sdpa on CPU, on CUDA flex if it runs)."
    )
    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        description="Ranks that hold the model together, each with one GPU or a share of the CPUs; above 1 DeepSpeed "
        "divides it among them.",
    )
    tensor_parallel_strategy: Literal["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"] = Field(
        default="PACK",
        description="Where ranks go: PACK (one machine if it has room), STRICT_PACK (one machine), SPREAD or "
        "STRICT_SPREAD (different machines).",
    )
    rank_silent_after_s: float = Field(
        default=10.0,
        gt=1.0,
        description="A rank without a sign of life for that long is the end of its replica, in seconds.",
    )
    engine: EngineConfig = EngineConfig()
    max_body_bytes: int = Field(
        default=8 * 2**20, ge=1024, description="Largest HTTP request body; a larger one is answered 413."
    )
    body_timeout_s: float = Field(
        default=60.0, gt=0, description="Longest time that a request body may take to come, in seconds; then 408."
    )
    api_keys_file: Annotated[Path, Field(strict=False)] | None = Field(
        default=None,
        description="File of API keys (`goose keys new`), wherever an ingress runs; with it every route but /health "
        "wants one. `GOOSE_API_KEYS_FILE` takes its place.",
    )
    api_key_sha256: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256, in hex, of one more key; that of `GOOSE_API_KEY`, if set.",
    )
    tool_parser: Literal["auto", "none", "hermes", "llama3_json", "mistral"] = Field(
        default="auto",
        description="How the model writes tool calls: hermes (Qwen too), llama3_json, mistral, auto (as its chat "
        "template says) or none (tools are refused).",
    )
    reasoning_parser: Literal["auto", "none", "qwen3", "deepseek_r1"] = Field(
        default="auto",
        description="How the model thinks before it answers: qwen3 (between `<think>` and `</think>`), deepseek_r1 "
        "(from the start up to `</think>`), auto (qwen3 if its chat template knows `</think>`) or none (thinking stays "
        "in the answer).",
    )
    router: Literal["prefix", "power_of_two"] = Field(
        default="prefix",
        description="Which replica gets a request: prefix (the one that knows most of its prompt, unless it is much "
        "busier) or power_of_two (the less busy of two at random).",
    )
    replicas_per_node: int = Field(
        default=2,
        ge=1,
        description="Most replicas that share a machine: each one's forward gets that part of the machine's CPUs.",
    )
    report_period_s: float = Field(
        default=2.0, gt=0, description="Seconds between a replica's reports to the acceptance aggregator."
    )
    replica_silent_after_s: float = Field(
        default=6.0, gt=0, description="A replica that has not reported for that long counts as gone, in seconds."
    )

    tuning: bool = Field(
        default=True,
        description="Tune each replica's trees, and start new ones, by what the whole cluster has learned; off: each "
        "learns alone. Changes trees, never outputs.",
    )
    workload: str = Field(
        default="",
        max_length=64,
        description="Name of the traffic that this deployment gets: replicas of one name learn from each other first.",
    )
    tuning_half_life_s: float = Field(
        default=300.0, gt=0, description="Age at which a count weighs half in tuning, in seconds."
    )
    share_period_s: float = Field(
        default=30.0, gt=0, description="Seconds between a replica's offers of what it has learned to new replicas."
    )
    share_texts: bool = Field(
        default=True,
        description="New replicas start with the newest texts of others, of requests without a cache_salt.",
    )
    shared_text_tokens: int = Field(default=65536, ge=0, description="Most tokens of texts that a replica offers.")
    tracing_endpoint: str | None = Field(
        default=None,
        min_length=1,
        description="Where OpenTelemetry traces of requests go, by OTLP over HTTP: http://collector:4318/v1/traces; "
        "without it there are none. Needs the extra tracing. Default: what `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` says, if the extra is installed.",
    )
    tracing_sample: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Part of the requests that is traced, of those that come without a trace; the others have decided.",
    )
    aggregator_snapshot: str | None = Field(
        default=None,
        min_length=1,
        description="Where the aggregator keeps its memory for the next one: a path that every node has, or a URI that "
        "fsspec knows. Counts and weights, no texts.",
    )

    @model_validator(mode="after")
    def _silence_is_longer_than_a_period(self) -> Self:
        if self.replica_silent_after_s <= self.report_period_s:
            raise ValueError(
                f"replica_silent_after_s ({self.replica_silent_after_s}) must be more than report_period_s "
                f"({self.report_period_s})"
            )
        return self

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> "GooseConfig":
        """The YAML's `args`; `GOOSE_MODEL`, `GOOSE_TENSOR_PARALLEL_SIZE`, `GOOSE_API_KEYS_FILE` and `GOOSE_API_KEY`, if
        set, take the place of four of them. Of the last one the hash alone is kept.

        Raises ConfigError naming the field, its value and what would be right.
        """
        try:
            config = cls.model_validate({**_standard_environment(), **args, **_from_environment()})
        except ValidationError as error:
            # a secret that came to the wrong place must not come to the log too
            raise ConfigError(first_problem(error, cls, secrets=("api_key_sha256",))) from None
        config.engine.check_choices()
        if config.tracing_endpoint is not None and not _has_exporter():
            raise ConfigError("tracing_endpoint: needs the extra tracing (pip install 'goose-ray[tracing]')")
        return config

    def on_node(self, num_cpus: int) -> "GooseConfig":
        """With `engine.num_threads` set: as it stands, or else the replica's share of a machine of `num_cpus`.

        More threads than cores wait for one another in every forward, which is then several times slower.
        """
        num_threads = self.engine.num_threads or max(1, num_cpus // self.replicas_per_node)
        return self.model_copy(update={"engine": self.engine.model_copy(update={"num_threads": num_threads})})

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model


def _standard_environment() -> dict[str, Any]:
    """What OpenTelemetry's own variables say of GooseConfig's fields, which `args` overrule. They are set for whole
    machines: without the extra they mean somebody else.
    """
    environment = os.environ
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or (
        environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    )
    if is_off or not _has_exporter():
        return {}
    if endpoint := environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return {"tracing_endpoint": endpoint}
    if base := environment.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return {"tracing_endpoint": f"{base.rstrip('/')}/v1/traces"}
    return {}


def _has_exporter() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _from_environment() -> dict[str, Any]:
    """The fields of GooseConfig that the environment names."""
    named: dict[str, Any] = {}
    if model := os.environ.get("GOOSE_MODEL"):
        named["model"] = model
    if size := os.environ.get("GOOSE_TENSOR_PARALLEL_SIZE"):
        if not size.isdecimal():
            raise ConfigError(f"GOOSE_TENSOR_PARALLEL_SIZE must be a whole number, not {size!r}")
        named["tensor_parallel_size"] = int(size)
    if (keys := os.environ.get("GOOSE_API_KEYS_FILE")) is not None:
        # An empty one would leave the server open to all whom it was meant to keep out.
        if not keys:
            raise ConfigError("GOOSE_API_KEYS_FILE must name a file of API keys, or be unset")
        named["api_keys_file"] = keys
    if (key := os.environ.get("GOOSE_API_KEY")) is not None:
        if len(key) < _LEAST_KEY_CHARS:
            raise ConfigError(
                f"GOOSE_API_KEY must have {_LEAST_KEY_CHARS} characters at least, not {len(key)}; "
                "`goose keys new` makes one that nobody can guess"
            )
        named["api_key_sha256"] = hashlib.sha256(key.encode()).hexdigest()
    return named
