"""Plain decoding: nothing is drafted. The yardstick of every other policy."""

from collections.abc import Sequence

from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, TreeQuery
from goose.tree import FloatArray, TokenTree

__all__ = ["AutoregressivePolicy"]


class AutoregressivePolicy:
    """One node a tree. Keeps nothing of its requests, so no verb can be out of order."""

    name = "autoregressive"
    source_names: tuple[str, ...] = ()
    harvest_k = 0

    def start_request(self, request: DraftRequest) -> None: ...

    def propose(
        self, queries: Sequence[TreeQuery], max_nodes: int, step_seconds: FloatArray | None = None
    ) -> list[TokenTree]:
        return [TokenTree.anchor_only(query.anchor_id) for query in queries]

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None: ...

    def stop_request(self, request_id: str) -> None: ...
