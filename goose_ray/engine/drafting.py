"""The engine's side of the speculator: a fault in drafting is loud, and changes no output.

Whatever the target verifies is right whether or not it was drafted well, so a speculator that raises, or proposes
trees that cannot be verified, costs speed alone: plain decoding takes its place, the fault is logged and counted.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from goose.calibration import AcceptanceTable
from goose.observation import Harvest, TreeOutcome
from goose.tree import IntArray, TokenTree, TreeBatch
from goose_ray.engine.sequence import SequenceState

__all__ = ["BatchSpeculator", "Drafting"]

_logger = logging.getLogger(__name__)


class BatchSpeculator(Protocol):
    """What the engine needs of `goose.speculator.Speculator`."""

    @property
    def policies(self) -> tuple[str, ...]: ...

    @property
    def harvest_k(self) -> int: ...

    def start_request(
        self,
        request_id: str,
        prompt_ids: Sequence[int] | IntArray,
        *,
        stop_token_ids: Iterable[int] = (),
        cache_salt: str | None = None,
        policy: str | None = None,
    ) -> None: ...

    def propose(self, request_ids: Sequence[str], *, max_draft_depths: Sequence[int], max_nodes: int) -> TreeBatch: ...

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[dict[str, tuple[int, int]]]: ...

    def stop_request(self, request_id: str) -> None: ...

    def counters(self) -> AcceptanceTable: ...


class Drafting:
    """Guards a speculator. No method raises on the speculator's account; `num_errors` counts what went wrong."""

    def __init__(self, speculator: BatchSpeculator, vocab_size: int) -> None:
        self._speculator = speculator
        self._vocab_size = vocab_size
        self._started: set[str] = set()
        self.num_errors = 0

    def start(self, sequence: SequenceState) -> None:
        """Starts the request unless it is. A sequence that the speculator refuses goes on without drafts."""
        request = sequence.request
        if request.request_id in self._started:
            return
        try:
            self._speculator.start_request(
                request.request_id,
                sequence.tokens.view(),
                stop_token_ids=sequence.output.rules.all_token_ids,
                cache_salt=request.cache_salt,
                policy=request.policy,
            )
        except Exception:
            self._report(f"starting request {request.request_id!r}")
        else:
            self._started.add(request.request_id)

    def stop(self, request_id: str) -> None:
        """Forgets the request if it was started."""
        if request_id in self._started:
            self._started.remove(request_id)
            try:
                self._speculator.stop_request(request_id)
            except Exception:
                self._report(f"stopping request {request_id!r}")

    def propose(self, sequences: Sequence[SequenceState], max_draft_nodes: int) -> list[TokenTree]:
        """One tree a sequence, `max_draft_nodes` draft nodes in all at most; no deeper than the output may grow."""
        trees = [TokenTree.anchor_only(sequence.tokens[-1]) for sequence in sequences]
        asked = [i for i, s in enumerate(sequences) if s.request_id in self._started]
        if not asked or max_draft_nodes == 0:
            return trees
        # The last output token is never drafted: it is the bonus, whatever the draft.
        depths = [sequences[i].num_remaining - 1 for i in asked]
        max_nodes = len(asked) + max_draft_nodes
        try:
            proposed = self._speculator.propose(
                [sequences[i].request_id for i in asked], max_draft_depths=depths, max_nodes=max_nodes
            )
            if len(proposed) != len(asked) or proposed.num_nodes > max_nodes:
                raise ValueError(
                    f"{len(asked)} trees of {max_nodes} nodes asked for, {len(proposed)} of {proposed.num_nodes} given"
                )
        except Exception:
            self._report("proposing trees")
            return trees
        for i, depth, tree in zip(asked, depths, proposed, strict=True):
            if fault := self._fault(tree, sequences[i].tokens[-1], depth):
                self._report(f"the tree of request {sequences[i].request_id!r}: {fault}", raised=False)
            else:
                trees[i] = tree
        return trees

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[Mapping[str, tuple[int, int]]]:
        """Tells the speculator what became of the trees; gives its counts per source for each outcome."""
        counts: list[Mapping[str, tuple[int, int]]] = [{} for _ in outcomes]
        known = [i for i, outcome in enumerate(outcomes) if outcome.request_id in self._started]
        try:
            observed = self._speculator.observe([outcomes[i] for i in known], harvest)
        except Exception:
            self._report("observing a step")
            return counts
        for i, by_source in zip(known, observed, strict=True):
            counts[i] = by_source
        return counts

    def _fault(self, tree: TokenTree, anchor_id: int, max_depth: int) -> str | None:
        if tree.token_ids[0] != anchor_id:
            return f"its anchor is {tree.token_ids[0]}, the last committed token is {anchor_id}"
        if tree.num_nodes == 1:
            return None
        if tree.depths.max() > max_depth:
            return f"it is {tree.depths.max()} deep, {max_depth} is the limit"
        if tree.token_ids.min() < 0 or tree.token_ids.max() >= self._vocab_size:
            return f"its tokens are not all in the vocabulary of {self._vocab_size}"
        return None

    def _report(self, doing: str, *, raised: bool = True) -> None:
        self.num_errors += 1
        # The first, second, fourth, eighth ...: a fault that recurs in every step must not fill the disk.
        if self.num_errors & (self.num_errors - 1) == 0:
            _logger.error(
                "drafting failed while %s (error %d); decoding goes on without", doing, self.num_errors, exc_info=raised
            )
