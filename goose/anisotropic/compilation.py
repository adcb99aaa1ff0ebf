"""Compiles the steps ahead of the first request. Where there is nothing to compile, nothing happens."""

import numpy as np

from goose.allocation import cut_trees
from goose.anisotropic.budget import TreeLimits
from goose.anisotropic.drafter import Drafter
from goose.anisotropic.steps import build_trees
from goose.anisotropic.weights import Weights
from goose.jit import needs_compilation
from goose.observation import Harvest, HarvestOrigin, TreeOutcome
from goose.request import DraftRequest, TreeQuery

__all__ = ["compile_steps"]

_PROMPT = np.array([1, 2, 3, 1, 2])


def compile_steps() -> None:
    """Runs each step once, on the smallest drafter there is. Later calls cost microseconds."""
    if not needs_compilation(build_trees):
        return
    drafter = Drafter(Weights.zero(), max_positions=64, learning_rate=0.1)
    drafter.start_request(
        DraftRequest(request_id="compile", prompt_ids=_PROMPT, stop_token_ids=frozenset({0}), cache_salt=None, budget=8)
    )
    harvest = Harvest(
        previous_ids=np.array([-1, 1, 2, 3]),
        token_ids=_PROMPT[:4],
        top_ids=np.array([[2, 3], [3, 1], [1, 2], [2, 1]]),
        top_probs=np.full((4, 2), 0.4, dtype=np.float32),
        origin=HarvestOrigin(("compile",), np.zeros(4, np.int64), np.arange(4)),
    )
    drafter.observe([], harvest)
    eight, one = np.array([8], dtype=np.int64), np.array([1], dtype=np.int64)
    limits = TreeLimits(targets=eight, floors=eight, max_nodes=eight, thresholds=np.array([0.5]))
    identity = np.arange(8, dtype=np.int64)
    [tree] = drafter.propose([TreeQuery("compile", 2, 8)], limits, 8, identity)
    cut_trees([tree], np.array([True]), np.ones(9, dtype=np.float32), 8)
    # More tokens than a new segment holds, so that the text moves.
    many = np.ones(600, dtype=np.int64)
    drafter.observe([TreeOutcome("compile", tree, one[:0], many, 1)], None)
    drafter.stop_request("compile")
