"""What a draft source is: one lifecycle, asked for the whole batch at once, answering in flat arrays.

A source is one file in this folder and one line in `goose.sources.registry`. Knows nothing of trees' shapes: which
candidates are worth a node is a policy's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest
from goose.tree import FloatArray, IntArray

__all__ = ["CandidateQuery", "Candidates", "DraftSource"]


@dataclass(frozen=True, slots=True, eq=False)
class CandidateQuery:
    """Asks what may follow a node of a request's tree."""

    request_id: str
    # [num_draft] int64: the draft tokens from below the anchor down to the node; empty asks at the anchor
    draft_ids: IntArray
    # levels wanted below the node
    max_depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """A forest of candidates for a batch of queries, parents before children, one entry a candidate."""

    # [num_candidates] int64: the query answered
    queries: IntArray
    # [num_candidates] int64
    token_ids: IntArray
    # [num_candidates] int64: the parent candidate, -1 if the candidate follows the node asked about
    parents: IntArray
    # [num_candidates] float32: the source's own estimate of P(accepted | parent reached), not calibrated
    scores: FloatArray
    # [num_candidates, num_features] float32: columns named by the source's `feature_names`
    features: FloatArray


class DraftSource(Protocol):
    """Where draft tokens come from. Raises RequestStateError, naming the request, on a verb out of order."""

    @property
    def name(self) -> str: ...

    @property
    def feature_names(self) -> tuple[str, ...]: ...

    @property
    def harvest_k(self) -> int:
        """Successors wanted at each harvested row; 0: the source learns nothing from harvests."""
        ...

    def start_request(self, request: DraftRequest) -> None: ...

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        """What a step came to, for the requests that this source serves. Either part may be empty."""
        ...

    def candidates(self, queries: Sequence[CandidateQuery]) -> Candidates: ...

    def stop_request(self, request_id: str) -> None:
        """Forgets all that was kept for this request alone."""
        ...
