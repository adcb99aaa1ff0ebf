"""The engine's side of the speculator: a fault in drafting is loud, and changes no output.

Whatever the target verifies is right whether or not it was drafted well, so a speculator that raises, or proposes
trees that cannot be verified, costs speed alone: plain decoding takes its place, the fault is logged and counted.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from goose.calibration import AcceptanceTable
from goose.observation import Harvest, TreeOutcome
from goose.tree import FloatArray, IntArray, TokenTree, TreeBatch
from goose_ray.engine.sequence import SequenceState

__all__ = ["BatchSpeculator", "Drafting", "unverifiable"]

_logger = logging.getLogger(__name__)


class BatchSpeculator(Protocol):
    """What the engine needs of `goose.speculator.Speculator`."""

    @property
    def policies(self) -> tuple[str, ...]: ...

    @property
    def harvest_k(self) -> int: ...

    @property
    def needs_prompts(self) -> bool: ...

    def start_request(
        self,
        request_id: str,
        prompt_ids: Sequence[int] | IntArray,
        *,
        stop_token_ids: Iterable[int] = (),
        cache_salt: str | None = None,
        policy: str | None = None,
        budget: int | None = None,
    ) -> None: ...

    def propose(
        self,
        request_ids: Sequence[str],
        *,
        max_draft_depths: Sequence[int],
        max_nodes: int,
        step_seconds: FloatArray | None = None,
    ) -> TreeBatch: ...

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
                budget=request.budget,
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

    def propose(
        self,
        sequences: Sequence[SequenceState],
        max_draft_nodes: int,
        step_seconds: FloatArray | None = None,
        *,
        resting: bool = False,
    ) -> list[TokenTree]:
        """One tree a sequence, `max_draft_nodes` draft nodes in all at most; no deeper than the output may grow.

        `step_seconds[r]` is the predicted duration of the step with r nodes in all trees. `resting`: only requests that
        name a policy or a budget are drafted for.
        """
        trees: list[TokenTree | None] = [None] * len(sequences)
        asked: list[int] = []
        if max_draft_nodes:
            asked = [
                i for i, s in enumerate(sequences) if s.request_id in self._started and not (resting and _is_default(s))
            ]
        if asked:
            if step_seconds is not None:
                step_seconds = step_seconds[len(sequences) - len(asked) :]
            proposed = self._ask([sequences[i] for i in asked], len(asked) + max_draft_nodes, step_seconds)
            for i, tree in zip(asked, proposed, strict=True):
                trees[i] = tree
        return [tree or TokenTree.anchor_only(s.tokens[-1]) for tree, s in zip(trees, sequences, strict=True)]

    def _ask(
        self, sequences: Sequence[SequenceState], max_nodes: int, step_seconds: FloatArray | None
    ) -> list[TokenTree | None]:
        # The last output token is never drafted: it is the bonus, whatever the draft.
        max_depths = [sequence.num_remaining - 1 for sequence in sequences]
        request_ids = [sequence.request_id for sequence in sequences]
        try:
            batch = self._speculator.propose(
                request_ids, max_draft_depths=max_depths, max_nodes=max_nodes, step_seconds=step_seconds
            )
            if len(batch) != len(sequences) or batch.num_nodes > max_nodes:
                raise ValueError(
                    f"{len(sequences)} trees of {max_nodes} nodes asked for, {len(batch)} of {batch.num_nodes} given"
                )
            faulty = unverifiable(batch.trees, [s.tokens[-1] for s in sequences], max_depths, self._vocab_size)
        except Exception:
            self._report("proposing trees")
            return [None] * len(sequences)
        if faulty:
            self._report(f"proposing unverifiable trees for {[request_ids[i] for i in faulty]}", raised=False)
        return [None if i in faulty else tree for i, tree in enumerate(batch)]

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[Mapping[str, tuple[int, int]]]:
        """Tells the speculator what became of the trees; gives its counts per source for each outcome."""
        counts: list[Mapping[str, tuple[int, int]]] = [{} for _ in outcomes]
        known = [i for i, outcome in enumerate(outcomes) if outcome.request_id in self._started]
        try:
            observed = self._speculator.observe([outcomes[i] for i in known], harvest)
            for i, by_source in zip(known, observed, strict=True):
                counts[i] = by_source
        except Exception:
            self._report("observing a step")
        return counts

    def _report(self, doing: str, *, raised: bool = True) -> None:
        self.num_errors += 1
        # The first, second, fourth, eighth ...: a fault that recurs in every step must not fill the disk.
        if self.num_errors & (self.num_errors - 1) == 0:
            _logger.error(
                "drafting failed while %s (error %d); decoding goes on without", doing, self.num_errors, exc_info=raised
            )


def _is_default(sequence: SequenceState) -> bool:
    return sequence.request.policy is None and sequence.request.budget is None


def unverifiable(
    trees: Sequence[TokenTree], anchor_ids: Sequence[int], max_depths: Sequence[int], vocab_size: int
) -> set[int]:
    """Indices of the trees that are no trees, hang on another anchor, are too deep or hold unknown tokens.

    Raises ValueError if a tree's arrays differ in length or are empty.
    """
    sizes = np.asarray([len(tree.token_ids) for tree in trees])
    if not sizes.all():
        raise ValueError("a tree has no anchor")
    starts = np.cumsum(sizes) - sizes
    tree_of = np.repeat(np.arange(len(trees)), sizes)
    tokens = np.concatenate([tree.token_ids for tree in trees])
    parents = np.concatenate([tree.parents for tree in trees])
    depths = np.concatenate([tree.depths for tree in trees])
    node = np.arange(len(tokens)) - starts[tree_of]
    is_anchor = node == 0
    # Clipped to the node itself, so that a misplaced parent cannot lead out of the array.
    parent_depths = depths[starts[tree_of] + np.clip(parents, 0, node)]
    wrong = np.where(is_anchor, parents != -1, (parents < 0) | (parents >= node))
    wrong |= depths != np.where(is_anchor, 0, parent_depths + 1)
    wrong |= depths > np.asarray(max_depths)[tree_of]
    wrong |= (tokens < 0) | (tokens >= vocab_size)
    wrong |= is_anchor & (tokens != np.asarray(anchor_ids)[tree_of])
    return set(tree_of[wrong].tolist())
