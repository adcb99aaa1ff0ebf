"""The likeliest tree over all that is known for free: `goose.anisotropic` as a policy.

`budget` is the average number of nodes that a sequence verifies a step: a tree is larger where a long draft is likely,
at most 256 nodes, and smaller elsewhere. `max_nodes` is a hard limit on the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.anisotropic.budget import NodeBudget
from goose.anisotropic.candidates import CONTEXT, POOL, TRANSITIONS
from goose.anisotropic.compilation import compile_steps
from goose.anisotropic.drafter import Drafter
from goose.anisotropic.texts import NUM_SUCCESSORS
from goose.anisotropic.weights import Weights
from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.registry import SourceSet
from goose.tree import IntArray, TokenTree

__all__ = ["AnisotropicConstants", "AnisotropicPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnisotropicConstants:
    """Settings of the policy."""

    # tokens of live and past texts that are kept, at about 100 bytes each
    max_positions: int = 1 << 19
    # of the weights, see `goose.anisotropic.model`; 0: they stay what they are
    learning_rate: float = 0.05


class AnisotropicPolicy:
    """Keeps its own memory of texts and rows, so its requests are started in no source.

    Construction compiles where numba is installed: half a minute once a machine, then a second.
    """

    name = "anisotropic"
    source_names: tuple[str, ...] = ()

    def __init__(
        self,
        sources: SourceSet,
        *,
        weights: Weights | None = None,
        constants: AnisotropicConstants = AnisotropicConstants(),
    ) -> None:
        compile_steps()
        self.harvest_k = min(sources.harvest_k, NUM_SUCCESSORS)
        self._drafter = Drafter(
            weights or Weights.prior(),
            max_positions=constants.max_positions,
            learning_rate=constants.learning_rate,
        )
        self._nodes = NodeBudget()
        self._budgets = RequestStates[int](f"policy {self.name!r}")
        self._source_bits = _source_bits(sources)

    @property
    def num_bytes(self) -> dict[str, int]:
        """Bytes set aside for texts and rows."""
        return self._drafter.num_bytes

    @property
    def weights(self) -> Weights:
        """A copy of what the model has learned so far."""
        return self._drafter.weights

    def start_request(self, request: DraftRequest) -> None:
        self._budgets.require_new(request.request_id)
        self._drafter.start_request(request)
        self._budgets.start(request.request_id, request.budget)

    def propose(self, queries: Sequence[TreeQuery], max_nodes: int) -> list[TokenTree]:
        if not queries:
            return []
        request_ids = [query.request_id for query in queries]
        budgets = np.array([self._budgets[name] for name in request_ids], dtype=np.int64)
        limits = self._nodes.limits(budgets, self._drafter.taus(request_ids), max_nodes)
        trees = self._drafter.propose(queries, limits, max_nodes, self._source_bits)
        self._nodes.observe(limits, np.array([tree.num_nodes for tree in trees], dtype=np.int64))
        return trees

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        self._drafter.observe(outcomes, harvest)

    def stop_request(self, request_id: str) -> None:
        self._budgets.stop(request_id)
        self._drafter.stop_request(request_id)


def _source_bits(sources: SourceSet) -> IntArray:
    """[8] int64: the drafter's bits of a node -> those of `TokenTree.sources`."""
    names = {CONTEXT: "context", TRANSITIONS: "transitions", POOL: "pool"}
    credited = [sum(sources.bit(name) for bit, name in names.items() if bits & bit) for bits in range(8)]
    return np.array(credited, dtype=np.int64)
