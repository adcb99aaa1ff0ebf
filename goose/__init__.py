"""Training-free tree speculation: drafts from what is there already, verified without loss.

Plain numpy; the target model is whatever answers `draw`.

>>> from goose import Speculator, TreeOutcome, walk
>>> speculator = Speculator(policy="chain")
>>> speculator.start_request("r", [5, 6, 7, 8, 5, 6, 7])
>>> [tree] = speculator.propose(["r"], max_draft_depths=[4], max_nodes=60)
>>> tree.token_ids.tolist()  # the anchor, then what followed 5 6 7 before
[7, 8, 5, 6, 7]
>>> target = [8, 5, 9]  # what the target chooses after the anchor and after each accepted token
>>> path = walk(tree, lambda node: target[node])
>>> path.token_ids.tolist()  # two accepted tokens and the bonus token
[8, 5, 9]
>>> outcome = TreeOutcome("r", tree, path.accepted_nodes, path.token_ids, bonus_id=9)
>>> speculator.observe([outcome], harvest=None)  # source -> attempted, accepted
[{'context': (3, 2)}]
>>> speculator.stop_request("r")
"""

from goose.calibration import AcceptanceTable
from goose.cost import CostModel, StepShape
from goose.errors import GooseError, InvalidSnapshotError, InvalidTreeError, RequestStateError, UnknownNameError
from goose.forgetting import RecentAcceptance
from goose.observation import Harvest, TreeOutcome
from goose.posterior import AcceptancePosterior
from goose.random import uniform
from goose.speculator import Speculator
from goose.tree import TokenTree, TreeBatch
from goose.verify import VerifiedPath, walk, walk_batch

__all__ = [
    "AcceptancePosterior",
    "AcceptanceTable",
    "CostModel",
    "GooseError",
    "Harvest",
    "InvalidSnapshotError",
    "InvalidTreeError",
    "RecentAcceptance",
    "RequestStateError",
    "Speculator",
    "StepShape",
    "TokenTree",
    "TreeBatch",
    "TreeOutcome",
    "UnknownNameError",
    "VerifiedPath",
    "uniform",
    "walk",
    "walk_batch",
]
