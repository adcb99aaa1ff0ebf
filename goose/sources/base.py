"""What a draft source is: one lifecycle for all.

What it can be asked is its own: a text has matches, a table successors. A source is one file in this folder and one
line in `goose.sources.registry`. Knows nothing of trees' shapes: which candidates are worth a node is a policy's
business.
"""

from collections.abc import Sequence
from typing import Protocol

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest

__all__ = ["DraftSource"]


class DraftSource(Protocol):
    """Where draft tokens come from. Raises RequestStateError, naming the request, on a verb out of order."""

    @property
    def name(self) -> str: ...

    @property
    def harvest_k(self) -> int:
        """Successors wanted at each harvested row; 0: the source learns nothing from harvests."""
        ...

    def start_request(self, request: DraftRequest) -> None: ...

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        """What a step came to, for the requests that this source serves. Either part may be empty."""
        ...

    def stop_request(self, request_id: str) -> None:
        """Forgets all that was kept for this request alone."""
        ...
