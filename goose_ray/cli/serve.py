"""`goose serve`: Ray Serve's own `serve run` with the settings of a deployment file, and a look around before it.

Knows which options stand for which fields; what they mean is `goose_ray.config`'s business, and running is Serve's.
"""

import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import click

from goose_ray.cli.checks.finding import Finding, Verdict
from goose_ray.cli.deployment_file import Changes, DeploymentFile
from goose_ray.cli.deployment_reading import shipped_deployments
from goose_ray.cli.options import BUDGET
from goose_ray.config import GooseConfig
from goose_ray.errors import ConfigError

__all__ = ["serve"]


# More than one controller of Serve looks after; whoever writes more has mistyped.
_MOST_REPLICAS = 10_000


class _Replicas(click.ParamType[tuple[int, int]]):
    """A number from 1 on, or two as MIN:MAX."""

    name = "n|min:max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, colon, most = str(value).partition(":")
        if not colon:
            most = least
        try:
            bounds = int(least), int(most)
        except ValueError:
            bounds = 0, 0
        if not (least.isdecimal() and most.isdecimal() and 1 <= bounds[0] <= bounds[1]):
            self.fail(f"{value!r} is neither a number from 1 on nor two of them as MIN:MAX", param, ctx)
        if bounds[1] > _MOST_REPLICAS:
            self.fail(f"at most {_MOST_REPLICAS} replicas, not {most}", param, ctx)
        return bounds


@click.command()
@click.argument("model", required=False, metavar="[MODEL]")
@click.option(
    "--config",
    "name",
    metavar="FILE",
    help="A Serve config, or the name of one that comes along (qwen3-32b); default: goose. Options below change it.",
)
@click.option("--host", help="Address to listen on; 0.0.0.0: all of this machine's.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Port to listen on.")
@click.option("--replicas", type=_Replicas(), help="That many, or as many between two numbers as the load asks for.")
@click.option("--served-model-name", metavar="NAME", help="Name in the API; default: MODEL.")
@click.option(
    "--tensor-parallel-size", type=click.IntRange(min=1), metavar="N", help="Ranks that hold the model together."
)
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), help="Of weights and KV.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Where the model is.")
@click.option("--policy", help="Tree policy: anisotropic, autoregressive, balanced, chain, goose, recycling or suffix.")
@click.option("--budget", type=BUDGET, help="Nodes verified per sequence and step, or auto.")
@click.option("--max-model-len", type=click.IntRange(min=16), metavar="N", help="Longest prompt and output, in tokens.")
@click.option("--kv-cache-tokens", type=click.IntRange(min=64), metavar="N", help="Size of the KV pool, in tokens.")
@click.option("--max-running-requests", type=click.IntRange(min=1), metavar="N", help="Sequences in one batch.")
@click.option(
    "--api-keys-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="API keys (`goose keys new`); with it every route but /health wants one.",
)
@click.option("--address", help="Of the Ray cluster to join; default: as Ray finds it (RAY_ADDRESS), else a new one.")
@click.option("--print-config", is_flag=True, help="Print the YAML that would be served, and end.")
def serve(
    model: str | None,
    name: str | None,
    host: str | None,
    port: int | None,
    replicas: tuple[int, int] | None,
    policy: str | None,
    budget: int | Literal["auto"] | None,
    max_model_len: int | None,
    kv_cache_tokens: int | None,
    max_running_requests: int | None,
    address: str | None,
    print_config: bool,
    **args: Any,
) -> None:
    """Serve MODEL over OpenAI's API on this machine, or on the Ray cluster that it is part of.

    MODEL is a hub id, a directory or a GGUF file; default: what the file says, which is the embedded model. Says when
    it is ready; Ctrl-C stops it, and so does SIGTERM. It is `serve run` with the YAML that --print-config prints: take
    that along for `serve deploy`, and for what has no option here.

    \b
    goose serve
    goose serve Qwen/Qwen3-0.6B --port 8001 --replicas 1:4
    goose serve --config qwen3-32b --tensor-parallel-size 8
    goose serve --policy chain --budget 8 --print-config > deployment.yaml

    Exit status: 0 after Ctrl-C or SIGTERM, 1 if it cannot start, 2 for a wrong command line.
    """
    engine = {
        "policy": policy,
        "budget": budget,
        "max_model_len": max_model_len,
        "kv_cache_tokens": kv_cache_tokens,
        "max_running_requests": max_running_requests,
    }
    if model in shipped_deployments() and not Path(model).exists():
        raise click.BadParameter(
            f"{model} is a deployment that comes along, not a model: `goose serve --config {model}`", param_hint="MODEL"
        )
    deployment = DeploymentFile(name)
    deployment.change(
        Changes(host=host, port=port, replicas=replicas, args=_given({"model": model, **args}), engine=_given(engine))
    )
    for option, variable in (
        ("model", "GOOSE_MODEL"),
        ("tensor_parallel_size", "GOOSE_TENSOR_PARALLEL_SIZE"),
        ("api_keys_file", "GOOSE_API_KEYS_FILE"),
    ):
        if {"model": model, **args}[option] is not None:
            # else it would take the place of what stands on the command line
            os.environ.pop(variable, None)
    config = deployment.config
    if print_config:
        click.echo(deployment.dump(), nl=False)
        return
    _look_around(deployment, config, address)
    from goose_ray.cli.serving import run

    with tempfile.TemporaryDirectory(prefix="goose-serve-") as folder:
        file = Path(folder) / deployment.path.name
        file.write_text(deployment.dump(), encoding="utf-8")
        run(file, deployment, address=address)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _look_around(deployment: DeploymentFile, config: GooseConfig, address: str | None) -> None:
    """Raises ConfigError for what Serve would wait for without a word, or would not notice.

    Where the server will be on this machine alone its files are looked at too, and the model is fetched: a replica that
    cannot load it would be tried three times. In a cluster they may lie on other machines.
    """
    from goose_ray.cli.checks.port import check_port
    from goose_ray.cli.checks.ray_cluster import check_ray, cluster_to_join

    _require(check_ray(address))
    joins = cluster_to_join(address) is not None
    _require(check_port(deployment.host, deployment.port, joins_cluster=joins))
    if joins:
        return
    from goose_ray.api.auth.key_file import read_keys
    from goose_ray.assembly import check_model_fits
    from goose_ray.models.calibrations import load_calibration
    from goose_ray.models.loader import find, resolve
    from goose_ray.telemetry.snapshot_file import SnapshotFile

    if config.aggregator_snapshot is not None:
        SnapshotFile(config.aggregator_snapshot).check()
    if config.api_keys_file is not None:
        read_keys(config.api_keys_file)
    load_calibration(config.engine.calibration, config.model)
    check_model_fits(config)
    if find(config.model) is None:
        click.echo(f"Fetching {config.model} …", err=True)
        resolve(config.model)


def _require(finding: Finding) -> None:
    if finding.verdict is Verdict.FAIL:
        raise ConfigError(f"{finding.found}; {finding.remedy}")
