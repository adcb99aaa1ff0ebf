"""Lines of the tables in docs/plan.md."""

from pathlib import Path

from goose_ray.cli.deployment_file import DeploymentFile
from goose_ray.plan.deployment import DeploymentPlan, plan_deployment
from goose_ray.plan.gpus import GPUS

__all__ = ["DEPLOYMENTS", "FILES", "plan_table"]

DEPLOYMENTS = Path(__file__).parents[1] / "deployments"
FILES = ("vicuna-33b", "deepseek-coder-33b", "qwen3-32b", "llama-3-8b")


def plan_table() -> str:
    lines = [
        (
            "| deployment | GPUs | GiB of a rank | has | tokens of KV that fit | ms, 1 node | ms, 64 nodes | "
            "nodes each at 1, 8, 32 sequences | tokens/s at 1, 8, 32 |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in FILES:
        config = DeploymentFile(str(DEPLOYMENTS / f"{name}.yaml")).config
        lines += [_line(name, plan_deployment(config, gpu)) for gpu in GPUS]
    return "\n".join(lines)


def _line(name: str, planned: DeploymentPlan) -> str:
    memory = planned.memory
    fits = "" if planned.fits else f" ({memory.missing / 2**30:.2f} too much)"
    budgets = ", ".join(f"{budget.budget:.1f}" for budget in planned.budgets)
    speeds = ", ".join(f"{budget.tokens_per_s:.0f}" for budget in planned.budgets)
    return (
        f"| {name} | {planned.num_ranks} x {planned.gpu} | {memory.total / 2**30:.2f}{fits} | "
        f"{memory.available / 2**30:.2f} | {memory.kv_tokens_that_fit} | {1e3 * planned.step_s[1]:.2f} | "
        f"{1e3 * planned.step_s[64]:.2f} | {budgets} | {speeds} |"
    )
