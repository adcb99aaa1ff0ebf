"""How many nodes a step should verify: goose's own allocation, over predicted durations and recorded acceptance."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from goose.allocation import allocate
from goose.tree import FloatArray

__all__ = ["NODES_AND_TAU", "BudgetPlan", "best_budget", "path_probabilities"]

# Tokens a step by nodes of `anisotropic` on natural replies, SmolLM2-135M-Instruct: docs/benchmarks.md, "Policies at
# equal verified nodes". Repetitive replies have two to three times as many; a larger model's will be others.
NODES_AND_TAU = ((1, 1.0), (16, 2.22), (32, 2.45), (60, 2.58))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """What is best for so many sequences with so much context each; `plain` is without speculation."""

    sequences: int
    context: int
    # nodes a sequence, anchor included
    budget: float
    tokens_per_step: float
    step_s: float
    tokens_per_s: float
    plain_tokens_per_s: float


def path_probabilities() -> FloatArray:
    """[num_nodes] float32, falling: what each further node of one tree adds to the tokens of a step.

    Between the recorded sizes tokens grow with the logarithm of the nodes.
    """
    sizes, taus = zip(*NODES_AND_TAU, strict=True)
    nodes = np.arange(1, sizes[-1] + 1)
    tau = np.interp(np.log2(nodes), np.log2(sizes), taus)
    probabilities: FloatArray = np.diff(tau, prepend=0.0).astype(np.float32)
    return probabilities


def best_budget(sequences: int, context: int, max_rows: int, seconds_of: Callable[[int], float]) -> BudgetPlan:
    """`seconds_of` rows is the duration of a step; at most `max_rows` are in one."""
    of_tree = path_probabilities()
    all_trees = np.tile(of_tree, sequences)
    is_anchor = np.tile(np.arange(len(of_tree)) == 0, sequences)
    curve = np.array([seconds_of(max(1, rows)) for rows in range(max_rows + 1)], dtype=np.float32)
    chosen = allocate(all_trees.astype(np.float64), is_anchor, curve, max_rows)
    return BudgetPlan(
        sequences=sequences,
        context=context,
        budget=int(chosen.kept.sum()) / sequences,
        tokens_per_step=chosen.tokens / sequences,
        step_s=chosen.seconds,
        tokens_per_s=chosen.tokens / chosen.seconds,
        plain_tokens_per_s=sequences / seconds_of(sequences),
    )
