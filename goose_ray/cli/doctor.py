"""`goose doctor`: what is missing here, and what to do about it."""

import json
from collections.abc import Iterator

import click

from goose_ray.cli.checks.finding import Finding, Verdict, worst
from goose_ray.cli.deployment_file import Changes, DeploymentFile
from goose_ray.cli.options import json_option
from goose_ray.errors import ConfigError

__all__ = ["doctor"]

_COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@click.command()
@click.option("--config", "name", metavar="FILE", help="What is to be served; default: deployments/goose.yaml.")
@click.option("--port", type=click.IntRange(1, 65535), help="Of the server, if it is to be another than the file's.")
@click.option("--address", help="Of the Ray cluster to join; default: as Ray finds it (RAY_ADDRESS).")
@json_option
def doctor(name: str | None, port: int | None, address: str | None, as_json: bool) -> None:
    """Check that a deployment can be served here: packages, compiler, GPUs, Ray, port, model, memory.

    Changes nothing. A line each with ok, warn (it will run, less well or not everything) or fail (it will not), and
    what to do about it. Exit status 1 if anything fails, else 0.

    \b
    goose doctor
    goose doctor --config deployments/goose-tp2.yaml --port 8001
    goose doctor --json
    """
    deployment = DeploymentFile(name)
    deployment.change(Changes(port=port))
    findings = []
    for finding in _findings(deployment, address):
        findings.append(finding)
        if not as_json:
            _show(finding)
    verdict = worst(findings)
    if as_json:
        checks = [finding.as_json() for finding in findings]
        click.echo(json.dumps({"object": "goose.doctor", "verdict": verdict, "checks": checks}, indent=2))
    if verdict is Verdict.FAIL:
        raise SystemExit(1)


def _findings(deployment: DeploymentFile, address: str | None) -> Iterator[Finding]:
    from goose_ray.cli.checks import machine, software
    from goose_ray.cli.checks.port import check_port
    from goose_ray.cli.checks.ray_cluster import check_ray, cluster_to_join

    yield software.check_python()
    packages = software.check_packages("serve")
    yield packages
    if packages.verdict is Verdict.FAIL:
        # what follows would end in their absence
        return
    try:
        config = deployment.config
    except ConfigError as error:
        yield Finding("deployment", Verdict.FAIL, str(error), "correct it; what depends on it was not checked")
        yield check_ray(address)
        yield machine.check_cache()
        return
    yield software.check_packages("tensor-parallel", needed=config.tensor_parallel_size > 1)
    yield software.check_compiler(config)
    yield software.check_gpus(config)
    found = check_ray(address)
    yield found
    joins = found.verdict is Verdict.OK and cluster_to_join(address) is not None
    yield check_port(deployment.host, deployment.port, joins_cluster=joins)
    yield machine.check_cache()
    yield machine.check_model(config)
    if config.api_keys_file is not None and not joins:
        yield machine.check_keys(config.api_keys_file)
    if config.aggregator_snapshot is not None:
        yield machine.check_snapshot(config.aggregator_snapshot)
    yield machine.check_memory(config)
    yield machine.check_shared_memory()


def _show(finding: Finding) -> None:
    mark = click.style(f"{finding.verdict:4}", fg=_COLOURS[finding.verdict])
    click.echo(f"{mark}  {finding.subject:26}  {finding.found}")
    if finding.remedy:
        click.echo(f"      {'':26}  → {finding.remedy}")
