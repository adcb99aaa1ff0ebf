"""The engine's side of the speculator: a fault in drafting is loud, and changes no output.

Whatever the target verifies is right whether or not it was drafted well, so a speculator that raises, or proposes
trees that cannot be verified, costs speed alone: plain decoding takes its place, the fault is logged and counted.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from goose.calibration import AcceptanceTable
from goose.jit import jit
from goose.observation import Harvest, TreeOutcome
from goose.tree import BoolArray, FloatArray, IntArray, TokenTree, TreeBatch
from goose_ray.engine.rested import RestedOutcomes
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
        # requests for which the last step looked for no drafts, and what they have committed so that nobody was told of
        self._at_rest: set[str] = set()
        self._rested = RestedOutcomes()
        self.num_errors = 0
        # Compiles, so that no request waits for it.
        unverifiable([TokenTree.anchor_only(0)], [0], [0], vocab_size)

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
                # Its text stays for others, whole.
                self._tell(self._rested.take([request_id]))
                self._speculator.stop_request(request_id)
            except Exception:
                self._report(f"stopping request {request_id!r}")

    def propose(
        self,
        sequences: Sequence[SequenceState],
        max_draft_nodes: int,
        step_seconds: Callable[[], FloatArray | None] = lambda: None,
        *,
        resting: bool = False,
    ) -> list[TokenTree]:
        """One tree a sequence, `max_draft_nodes` draft nodes in all at most; no deeper than the output may grow.

        `step_seconds()[r]` is the predicted duration of the step with r nodes in all trees. `resting`: only requests
        that name a policy or a budget are drafted for.
        """
        trees: list[TokenTree | None] = [None] * len(sequences)
        self._at_rest = {s.request_id for s in sequences if _is_default(s)} if resting else set()
        asked: list[int] = []
        if max_draft_nodes:
            awake = self._started - self._at_rest
            asked = [i for i, s in enumerate(sequences) if s.request_id in awake]
        if asked:
            seconds = step_seconds()
            if seconds is not None:
                seconds = seconds[len(sequences) - len(asked) :]
            proposed = self._ask([sequences[i] for i in asked], len(asked) + max_draft_nodes, seconds)
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
            if self._rested:
                self._tell(self._rested.take(request_ids))
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

    def observe(
        self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None, *, at_once: bool = True
    ) -> list[Mapping[str, tuple[int, int]]]:
        """Tells the speculator what became of the trees; gives its counts per source for each outcome. Unless
        `at_once`, it may be told later of requests for which it was asked nothing.
        """
        counts: list[Mapping[str, tuple[int, int]]] = [{} for _ in outcomes]
        told: list[int] = []
        for i, outcome in enumerate(outcomes):
            if outcome.request_id in self._started:
                if not at_once and outcome.request_id in self._at_rest and not outcome.tree.num_draft_nodes:
                    self._rested.keep(outcome)
                else:
                    told.append(i)
        try:
            known = [outcomes[i] for i in told]
            if self._rested:
                # A tree at rest may hold what a grammar forces: it is told of at once, behind what was kept.
                known = [self._rested.joined(outcome) for outcome in known]
                if at_once:
                    self._tell(self._rested.take_all())
            if known or harvest is not None:
                for i, by_source in zip(told, self._speculator.observe(known, harvest), strict=True):
                    counts[i] = by_source
        except Exception:
            self._report("observing a step")
        return counts

    def _tell(self, outcomes: Sequence[TreeOutcome]) -> None:
        if outcomes:
            self._speculator.observe(outcomes, None)

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
    sizes = [len(tree.token_ids) for tree in trees]
    if not all(sizes):
        raise ValueError("a tree has no anchor")
    if any(len(tree.parents) != size or len(tree.depths) != size for tree, size in zip(trees, sizes, strict=True)):
        raise ValueError("a tree's arrays differ in length")
    faulty = np.zeros(len(trees), dtype=np.bool_)
    _find_faulty(
        np.concatenate([tree.token_ids for tree in trees], dtype=np.int64),
        np.concatenate([tree.parents for tree in trees], dtype=np.int64),
        np.concatenate([tree.depths for tree in trees], dtype=np.int64),
        np.array([sizes, anchor_ids, max_depths], dtype=np.int64),
        vocab_size,
        faulty,
    )
    return set(faulty.nonzero()[0].tolist())


@jit
def _find_faulty(
    tokens: IntArray, parents: IntArray, depths: IntArray, asked: IntArray, vocab_size: int, faulty: BoolArray
) -> None:
    """asked [3, num_trees]: number of nodes, anchor, greatest depth."""
    start = 0
    for i in range(asked.shape[1]):
        for node in range(asked[0, i]):
            parent, at = parents[start + node], start + node
            if node == 0:
                is_wrong = parent != -1 or depths[at] != 0 or tokens[at] != asked[1, i]
            else:
                is_wrong = not 0 <= parent < node or depths[at] != depths[start + parent] + 1
            if is_wrong or depths[at] > asked[2, i] or not 0 <= tokens[at] < vocab_size:
                faulty[i] = True
        start += asked[0, i]
