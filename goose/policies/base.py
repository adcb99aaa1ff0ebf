"""What a tree policy is: it turns what the sources offer into one tree a sequence, within the nodes it is given.

A policy is one file in this folder and one line in `goose.policies.registry`. Knows nothing of the target model.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, TreeQuery
from goose.tree import FloatArray, IntArray, TokenTree
from goose.tuning import TreeTuning
from goose.tuning_counts import TuningCounts

if TYPE_CHECKING:
    from goose.anisotropic.calibration_file import CalibrationFile

__all__ = ["TreePolicy", "TunablePolicy", "fit", "shares"]


class TreePolicy(Protocol):
    """Builds trees. Raises RequestStateError, naming the request, on a verb out of order."""

    @property
    def name(self) -> str: ...

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources it drafts from; its requests are started in these alone."""
        ...

    @property
    def harvest_k(self) -> int:
        """Successors that it wants of a harvested row itself, whatever its sources want; 0: none."""
        ...

    def start_request(self, request: DraftRequest) -> None: ...

    def propose(
        self, queries: Sequence[TreeQuery], max_nodes: int, step_seconds: FloatArray | None = None
    ) -> list[TokenTree]:
        """One tree a query, in order, none deeper than the query's `max_depth`.

        All trees together have at most `max_nodes` nodes, anchors included; `max_nodes >= len(queries)`.
        `step_seconds[r]`, if given, is the predicted duration of the step with r nodes in these trees: for policies
        that size the trees of automatic requests by it. Others may leave it.
        """
        ...

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        """What became of its requests' trees, and the rows of the whole step. Either may be empty."""
        ...

    def stop_request(self, request_id: str) -> None: ...


@runtime_checkable
class TunablePolicy(Protocol):
    """A policy whose trees can be tuned from outside, and what it has learned be taken along."""

    @property
    def tuning_counts(self) -> TuningCounts:
        """Cumulative, and never changed in place."""
        ...

    def tune(self, tuning: TreeTuning) -> None:
        """Of requests that start from now on."""
        ...

    def learned(self, max_tokens: int) -> "CalibrationFile":
        """Weights with what was learned of them since the start, and texts of `max_tokens` tokens at most."""
        ...


def fit(trees: Sequence[TokenTree], max_nodes: int) -> list[TokenTree]:
    """Cuts the trees to `max_nodes` together: small trees stay whole, the rest share alike, best nodes first."""
    if sum(tree.num_nodes for tree in trees) <= max_nodes:
        return list(trees)
    sizes = shares(np.asarray([tree.num_nodes for tree in trees], dtype=np.int64), max_nodes)
    return [tree.best(size) for tree, size in zip(trees, sizes.tolist(), strict=True)]


def shares(wanted: IntArray, total: int) -> IntArray:
    """Max-min fair shares: each at most what it wants, and nobody gets more than one who wanted more and got less.

    Returns [len(wanted)] int64 summing to min(total, sum of wanted); the largest take the remainder.
    """
    given = np.zeros_like(wanted)
    left = total
    order = np.argsort(wanted, kind="stable")
    for served, index in enumerate(order.tolist()):
        given[index] = min(int(wanted[index]), left // (len(order) - served))
        left -= int(given[index])
    return given
