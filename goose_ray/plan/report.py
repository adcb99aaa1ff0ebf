"""A plan as lines of text."""

from collections.abc import Iterator

from goose_ray.plan.deployment import DeploymentPlan

__all__ = ["plan_lines"]


def plan_lines(planned: DeploymentPlan) -> Iterator[str]:
    memory = planned.memory
    yield f"{planned.model} on {planned.num_ranks} x {planned.gpu}"
    yield ""
    yield "GiB of a rank"
    for name in ("weights", "kv", "activations", "tables", "runtime", "total", "available"):
        yield f"  {name:12} {getattr(memory, name) / 2**30:8.2f}"
    tokens = planned.kv_cache_tokens
    yield f"  kv is {tokens} tokens of {memory.kv_per_token} bytes; {memory.kv_tokens_that_fit} would fit"
    yield ""
    yield f"predicted step of one sequence, {planned.context} tokens of context"
    yield "  nodes " + "".join(f"{nodes:8}" for nodes in planned.step_s)
    yield "  ms    " + "".join(f"{1e3 * seconds:8.2f}" for seconds in planned.step_s.values())
    yield ""
    yield "best budget, for natural replies"
    yield "  sequences  context  nodes each  tokens a step   ms  tokens/s  without speculation"
    for budget in planned.budgets:
        yield (
            f"  {budget.sequences:9}  {budget.context:7}  {budget.budget:10.1f}  {budget.tokens_per_step:13.2f}  "
            f"{1e3 * budget.step_s:5.1f}  {budget.tokens_per_s:7.0f}  {budget.plain_tokens_per_s:19.0f}"
        )
