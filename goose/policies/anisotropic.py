"""The likeliest tree over all that is known for free: `goose.anisotropic` as a policy.

`budget` is the average number of nodes that a sequence verifies a step: a tree is larger where a long draft is likely,
at most 256 nodes, and smaller elsewhere. `max_nodes` is a hard limit on the batch. Where the step's duration is given,
trees of automatic requests take instead the nodes that give the batch the most tokens a second, which may be none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from goose.allocation import cut_trees
from goose.anisotropic.budget import NodeBudget, TimeBudget
from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.candidates import CONTEXT, POOL, TRANSITIONS
from goose.anisotropic.compilation import compile_steps
from goose.anisotropic.drafter import Drafter
from goose.anisotropic.known_texts import KnownText
from goose.anisotropic.sharing import since
from goose.anisotropic.texts import NUM_SUCCESSORS
from goose.anisotropic.weights import Weights
from goose.observation import Harvest, TreeOutcome
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.registry import SourceSet
from goose.tree import FloatArray, IntArray, TokenTree
from goose.tuning import TreeTuning
from goose.tuning_counts import GROUPS, TuningCounts

__all__ = ["AnisotropicConstants", "AnisotropicPolicy"]


# One step in so many is counted for tuning: counts of some hundred trees say as much as those of all.
_COUNTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AnisotropicConstants:
    """Settings of the policy."""

    # tokens of live and past texts that are kept, at about 100 bytes each
    max_positions: int = 1 << 19
    # of the weights, see `goose.anisotropic.model`; 0: they stay what they are
    learning_rate: float = 0.05


@dataclass(frozen=True, slots=True)
class _Request:
    budget: int
    is_automatic: bool


class AnisotropicPolicy:
    """Keeps its own memory of texts and rows, so its requests are started in no source. `texts` are remembered from the
    start, by the requests without a cache salt.

    Construction compiles where numba is installed: half a minute once a machine, then a second.
    """

    name = "anisotropic"
    source_names: tuple[str, ...] = ()

    def __init__(
        self,
        sources: SourceSet,
        *,
        weights: Weights | None = None,
        texts: Iterable[KnownText] = (),
        constants: AnisotropicConstants = AnisotropicConstants(),
    ) -> None:
        compile_steps()
        self.harvest_k = min(sources.harvest_k, NUM_SUCCESSORS)
        self._start = weights or Weights.prior()
        self._drafter = Drafter(
            self._start,
            max_positions=constants.max_positions,
            learning_rate=constants.learning_rate,
            num_threads=sources.num_threads,
        )
        self._drafter.remember(texts)
        self._nodes, self._time = NodeBudget(), TimeBudget()
        # accepted tokens that the trees of this step promise, where they were cut by time
        self._expected: float | None = None
        self._requests = RequestStates[_Request](f"policy {self.name!r}")
        self._source_bits = _source_bits(sources)
        self._group_bits = [sources.bit(name) for name in GROUPS]
        self._tuning_counts, self._num_observed = TuningCounts.none(), 0

    @property
    def num_bytes(self) -> dict[str, int]:
        """Bytes set aside for texts and rows."""
        return self._drafter.num_bytes

    @property
    def weights(self) -> Weights:
        """A copy of what the model has learned so far."""
        return self._drafter.weights

    @property
    def tuning_counts(self) -> TuningCounts:
        """How right its probabilities were, of one step in four. Never changed in place."""
        return self._tuning_counts

    def tune(self, tuning: TreeTuning) -> None:
        """Of requests that start from now on."""
        self._drafter.tune(tuning)

    def learned(self, max_tokens: int) -> CalibrationFile:
        """Its weights, with the squared gradients that have come since its start (`goose.anisotropic.sharing`), and
        its newest texts without a salt, `max_tokens` at most.
        """
        return CalibrationFile(since(self._drafter.weights, self._start), self._drafter.known(max_tokens))

    def start_request(self, request: DraftRequest) -> None:
        self._requests.require_new(request.request_id)
        self._drafter.start_request(request)
        self._requests.start(request.request_id, _Request(request.budget, request.is_automatic))

    def propose(
        self, queries: Sequence[TreeQuery], max_nodes: int, step_seconds: FloatArray | None = None
    ) -> list[TokenTree]:
        if not queries:
            return []
        request_ids = [query.request_id for query in queries]
        requests = [self._requests[name] for name in request_ids]
        is_timed = np.array([step_seconds is not None and request.is_automatic for request in requests])
        if step_seconds is not None and is_timed.all():
            limits = self._time.limits(len(queries), step_seconds, max_nodes)
        else:
            budgets = np.array([request.budget for request in requests], dtype=np.int64)
            limits = self._nodes.limits(budgets, self._drafter.taus(request_ids), max_nodes)
            if step_seconds is not None:
                limits = limits.replaced(is_timed, self._time.limits(len(queries), step_seconds, max_nodes))
        # Where all are cut by time, that is soon enough to see to the room.
        trees = self._drafter.propose(queries, limits, None if is_timed.all() else max_nodes, self._source_bits)
        if not is_timed.all():
            sizes = np.array([tree.num_nodes for tree in trees], dtype=np.int64)
            self._nodes.observe(limits.of(~is_timed), sizes[~is_timed])
        if step_seconds is not None and is_timed.any():
            trust = self._time.trust
            cut = cut_trees(
                trees,
                is_timed,
                step_seconds,
                max_nodes,
                trust=trust,
                tokens_per_second=self._time.tokens_per_second,
            )
            self._time.observe(cut.tokens, cut.seconds)
            self._expected = (cut.tokens - len(trees)) / trust
            trees = cut.trees
        return trees

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        if outcomes:
            self._num_observed += 1
            if self._num_observed % _COUNTED == 0:
                self._count(outcomes)
        if self._expected is not None and outcomes:
            self._time.verified(self._expected, sum(len(outcome.accepted_nodes) for outcome in outcomes))
            self._expected = None
        # The drafter learns from what was committed, whatever was cut off before.
        self._drafter.observe(outcomes, harvest)

    def stop_request(self, request_id: str) -> None:
        self._requests.stop(request_id)
        self._drafter.stop_request(request_id)

    def _count(self, outcomes: Sequence[TreeOutcome]) -> None:
        """Before the drafter learns from the outcomes: afterwards its requests are adapted to them."""
        offsets, temperatures = self._drafter.adaptation([outcome.request_id for outcome in outcomes])
        self._tuning_counts += TuningCounts.of(
            [outcome.tree for outcome in outcomes],
            [outcome.accepted_nodes for outcome in outcomes],
            bits=self._group_bits,
            offsets=offsets,
            temperatures=temperatures,
        )


def _source_bits(sources: SourceSet) -> IntArray:
    """[8] int64: the drafter's bits of a node -> those of `TokenTree.sources`."""
    names = {CONTEXT: "context", TRANSITIONS: "transitions", POOL: "pool"}
    credited = [sum(sources.bit(name) for bit, name in names.items() if bits & bit) for bits in range(8)]
    return np.array(credited, dtype=np.int64)
