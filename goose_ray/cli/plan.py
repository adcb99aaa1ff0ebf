"""`goose plan`: whether a deployment fits a GPU, and what it gives there."""

import json

import click

from goose_ray.cli.options import json_option
from goose_ray.errors import ConfigError

__all__ = ["plan"]

_DRY_RUN_RANKS = (2, 4, 8)


@click.command()
@click.argument("deployment")
@click.option("--gpu", help="A100-40GB, A100-80GB, H100-80GB or H200-141GB.")
@click.option("--context", default=2048, show_default=True, type=click.IntRange(min=1), help="Tokens of a sequence.")
@click.option("--dry-run", is_flag=True, help="Divide the model, without memory, among 2, 4 and 8 ranks, and check.")
@json_option
def plan(deployment: str, gpu: str | None, context: int, dry_run: bool, as_json: bool) -> None:
    """Memory of a rank, tokens of KV, milliseconds of a step by nodes, and the budget with the most tokens a second.

    DEPLOYMENT is a file, or the name of one that comes along. From the model's config and the GPU's data sheet; needs
    neither weights nor GPU. Exit status 1 if it does not fit.

    \b
    goose plan qwen3-32b --gpu H100-80GB
    goose plan deployment.yaml --gpu H100-80GB --dry-run
    """
    from goose_ray.cli.deployment_file import DeploymentFile
    from goose_ray.plan.deployment import plan_deployment

    config = DeploymentFile(deployment).config
    if gpu is None and not dry_run:
        raise click.UsageError("Give --gpu, --dry-run or both.")
    found: dict[str, object] = {}
    refusal = None
    if gpu is not None:
        planned = plan_deployment(config, gpu, context=context)
        found |= planned.as_json()
        refusal = planned.refusal()
        if not as_json:
            from goose_ray.plan.report import plan_lines

            click.echo("\n".join(plan_lines(planned)))
    if dry_run:
        found["dry_run"] = _dry_runs(config.model, echo=not as_json)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    if refusal is not None:
        raise ConfigError(refusal)


def _dry_runs(model: str, *, echo: bool) -> list[dict[str, object]]:
    from goose_ray.plan.architecture import Architecture, read_config
    from goose_ray.plan.dry_run import dry_run

    of_model = read_config(model)
    sizes = [ranks for ranks in _DRY_RUN_RANKS if ranks <= Architecture.from_config(of_model).num_key_value_heads]
    found: list[dict[str, object]] = []
    for num_ranks in sizes:
        result = dry_run(of_model, num_ranks)
        found.append(
            {
                "ranks": num_ranks,
                "tensors": result.num_tensors,
                "divided": result.num_divided,
                "parameters": result.whole,
                "parameters_of_ranks": list(result.of_ranks),
            }
        )
        if echo:
            click.echo(
                f"{num_ranks} ranks: {result.num_tensors} tensors, {result.num_divided} of them divided, every part in "
                f"its place; {result.whole / 1e9:.3f}e9 parameters, at most {max(result.of_ranks) / 1e9:.3f}e9 a rank"
            )
    return found
