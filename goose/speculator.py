"""The façade: `propose` trees for the sequences of a step, `observe` what became of them.

Owns the draft sources, the policies and the acceptance counts. Knows nothing of models, KV or sampling.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from goose.calibration import AcceptanceTable
from goose.errors import UnknownNameError
from goose.observation import Harvest, TreeOutcome
from goose.policies.base import TreePolicy, TunablePolicy
from goose.policies.registry import POLICIES, PolicyBuilder
from goose.request import DraftRequest, RequestStates, TreeQuery
from goose.sources.registry import SOURCE_NAMES, SourceSet
from goose.sources.suffix import DEFAULT_POOL_TOKENS
from goose.tree import FloatArray, IntArray, TokenTree, TreeBatch
from goose.tuning import TreeTuning
from goose.tuning_counts import TuningCounts

if TYPE_CHECKING:
    from goose.anisotropic.calibration_file import CalibrationFile

__all__ = ["AUTOMATIC_NODES", "Speculator"]

# The paper's budget.
AUTOMATIC_NODES = 60
# sources keep ids as 32-bit integers
_MAX_TOKEN_ID = 2**31 - 1


@dataclass(slots=True)
class _Request:
    policy: str
    anchor_id: int


class Speculator:
    """Drafts for any number of requests at once. Not thread-safe: one engine loop owns it.

    `policy` and `budget` (nodes a sequence and step, anchor included) hold for requests that name none of their own.
    Without a budget (None) it is automatic: policies that can take in each step the nodes that give the most tokens a
    second by `propose`'s `step_seconds`; the others, and all without it, have AUTOMATIC_NODES. `harvest_k` is how many
    successors a harvested row is worth keeping, `pool_tokens` how much of past outputs the source `pool` keeps.
    Where numba is installed, `anisotropic` builds the trees of large batches on `num_threads`, at most four.
    `builders` are the policies by name, by default the registered ones.
    """

    def __init__(
        self,
        *,
        policy: str = "goose",
        budget: int | None = AUTOMATIC_NODES,
        harvest_k: int = 10,
        pool_tokens: int = DEFAULT_POOL_TOKENS,
        num_threads: int = 1,
        builders: Mapping[str, PolicyBuilder] = POLICIES,
    ) -> None:
        if budget is not None and budget < 1:
            raise ValueError(f"budget must be at least 1 (the anchor), not {budget}")
        if harvest_k < 1:
            raise ValueError(f"harvest_k must be at least 1, not {harvest_k}")
        if pool_tokens < 0:
            raise ValueError(f"pool_tokens must be at least 0, not {pool_tokens}")
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        self._sources = SourceSet(harvest_k=harvest_k, pool_tokens=pool_tokens, num_threads=num_threads)
        self._builders = builders
        self._tuning = TreeTuning()
        # Built when first asked for, because one may compile and set memory aside; the default policy now.
        self._policies: dict[str, TreePolicy] = {}
        self._policy(policy)
        self.policy = policy
        self.budget = budget
        self._table = AcceptanceTable(SOURCE_NAMES)
        # Compiles, so that no request waits for it.
        self._table.observe(TokenTree.anchor_only(0), np.empty(0, dtype=np.int64))
        self._requests = RequestStates[_Request]("the speculator")

    def prepare(self) -> None:
        """Compiles what any policy needs, so that the first request of one waits for nothing: half a minute the first
        time on a machine with numba, then a second or two.

        The policies are built for that and dropped again: one that is kept learns from every step, asked for or not.
        """
        for build in self._builders.values():
            build(SourceSet(harvest_k=self._sources.harvest_k, pool_tokens=0))

    @property
    def policies(self) -> tuple[str, ...]:
        """Names that `start_request` accepts."""
        return tuple(self._builders)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Name s is that of bit s in `TokenTree.sources`."""
        return SOURCE_NAMES

    @property
    def harvest_k(self) -> int:
        """Successors wanted per harvested row by the requests that are live now; 0 if none of them uses any."""
        policies = [self._policies[name] for name in {request.policy for request in self._requests}]
        names = {name for policy in policies for name in policy.source_names}
        wanted = [policy.harvest_k for policy in policies] + [self._sources[name].harvest_k for name in names]
        return max(wanted, default=0)

    @property
    def needs_prompts(self) -> bool:
        """Whether a live request's sources draft from harvested rows, of which the prompt's are then the most. To
        policies that keep rows themselves beside other things they are worth a hundredth or two of tau.
        """
        names = {name for request in self._requests for name in self._policies[request.policy].source_names}
        return any(self._sources[name].harvest_k for name in names)

    def start_request(
        self,
        request_id: str,
        prompt_ids: Sequence[int] | IntArray,
        *,
        stop_token_ids: Iterable[int] = (),
        cache_salt: str | None = None,
        policy: str | None = None,
        budget: int | None = None,
    ) -> None:
        """The committed tokens start as the prompt. Raises UnknownNameError, listing the known policies, and ValueError
        for a prompt that is empty or holds what is no token id.
        """
        self._requests.require_new(request_id)
        name = self.policy if policy is None else policy
        chosen = self._policy(name)
        prompt = np.asarray(prompt_ids, dtype=np.int64)
        if not len(prompt):
            raise ValueError(f"request {request_id!r}: prompt_ids must hold at least one token (the first anchor)")
        least, largest = int(prompt.min()), int(prompt.max())
        if least < 0 or largest > _MAX_TOKEN_ID:
            wrong = least if least < 0 else largest
            raise ValueError(
                f"request {request_id!r}: prompt_ids must be token ids from 0 to {_MAX_TOKEN_ID}, not {wrong}"
            )
        nodes = self.budget if budget is None else budget
        if nodes is not None and nodes < 1:
            raise ValueError(f"request {request_id!r}: budget must be at least 1 (the anchor), not {nodes}")
        request = DraftRequest(
            request_id=request_id,
            prompt_ids=prompt,
            stop_token_ids=frozenset(stop_token_ids),
            cache_salt=cache_salt,
            budget=AUTOMATIC_NODES if nodes is None else nodes,
            is_automatic=nodes is None,
        )
        started: list[str] = []
        try:
            for source_name in chosen.source_names:
                self._sources[source_name].start_request(request)
                started.append(source_name)
            chosen.start_request(request)
        except BaseException:
            # Nobody will stop a request that was not started.
            for source_name in started:
                self._sources[source_name].stop_request(request_id)
            raise
        self._requests.start(request_id, _Request(policy=name, anchor_id=int(prompt[-1])))

    def propose(
        self,
        request_ids: Sequence[str],
        *,
        max_draft_depths: Sequence[int],
        max_nodes: int,
        step_seconds: FloatArray | None = None,
    ) -> TreeBatch:
        """One tree a request, in order. Tree i is at most `max_draft_depths[i]` deep (0: the anchor alone).

        All trees together have at most `max_nodes >= len(request_ids)` nodes, anchors included. `step_seconds[r]`,
        r = 0 .. max_nodes, is the predicted duration of the step with r nodes in all trees together.
        """
        if max_nodes < len(request_ids):
            raise ValueError(f"max_nodes must hold an anchor a request: {max_nodes} for {len(request_ids)} requests")
        if len(request_ids) != len(max_draft_depths):
            raise ValueError(
                f"{len(request_ids)} request_ids need as many max_draft_depths, not {len(max_draft_depths)}"
            )
        groups: dict[str, list[int]] = {}
        queries: list[TreeQuery] = []
        for index, (request_id, depth) in enumerate(zip(request_ids, max_draft_depths, strict=True)):
            request = self._requests[request_id]
            queries.append(TreeQuery(request_id, request.anchor_id, depth))
            groups.setdefault(request.policy, []).append(index)
        trees: dict[int, TokenTree] = {}
        nodes_left, queries_left = max_nodes, len(queries)
        for policy, members in groups.items():
            share = nodes_left * len(members) // queries_left
            seconds = step_seconds
            if seconds is not None:
                # The nodes there are already, and the anchors of those whose turn is yet to come.
                seconds = seconds[max_nodes - nodes_left + queries_left - len(members) :]
            proposed = self._policies[policy].propose([queries[index] for index in members], share, seconds)
            trees.update(zip(members, proposed, strict=True))
            # What one policy does not use, the next may.
            nodes_left -= sum(tree.num_nodes for tree in proposed)
            queries_left -= len(members)
        return TreeBatch(tuple(trees[index] for index in range(len(queries))))

    def observe(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> list[dict[str, tuple[int, int]]]:
        """To be called after every step; a step without trees (prefill) may still have a harvest.

        Returns, for each outcome, source name -> (attempted, accepted) draft nodes at reached nodes.
        """
        self._learn(outcomes, harvest)
        return self._table.observe_batch(
            [outcome.tree for outcome in outcomes], [outcome.accepted_nodes for outcome in outcomes]
        )

    def _learn(self, outcomes: Sequence[TreeOutcome], harvest: Harvest | None) -> None:
        by_policy: dict[str, list[TreeOutcome]] = {name: [] for name in self._policies}
        # Of a source that no policy built so far draws on, nothing will be asked that it could have learned.
        by_source: dict[str, list[TreeOutcome]] = {
            name: [] for policy in self._policies.values() for name in policy.source_names
        }
        for outcome in outcomes:
            policy = self._requests[outcome.request_id].policy
            by_policy[policy].append(outcome)
            for name in self._policies[policy].source_names:
                by_source[name].append(outcome)
        for name, own in by_source.items():
            self._sources[name].observe(own, harvest)
        for name, own in by_policy.items():
            self._policies[name].observe(own, harvest)
        for outcome in outcomes:
            if len(outcome.committed_ids):
                self._requests[outcome.request_id].anchor_id = int(outcome.committed_ids[-1])

    def stop_request(self, request_id: str) -> None:
        """Forgets the request. What is warm across requests stays."""
        policy = self._policies[self._requests.stop(request_id).policy]
        for name in policy.source_names:
            self._sources[name].stop_request(request_id)
        policy.stop_request(request_id)

    def counters(self) -> AcceptanceTable:
        """Acceptance since construction, a copy: cumulative, JSON-able, mergeable."""
        return self._table.copy()

    def tune(self, tuning: TreeTuning) -> None:
        """What policies that can be tuned start requests with from now on. Changes trees, never outputs."""
        self._tuning = tuning
        for policy in self._tunable():
            policy.tune(tuning)

    def tuning_counts(self) -> TuningCounts:
        """What tuning goes by, cumulative since construction; not changed by later steps."""
        total = TuningCounts.none()
        for policy in self._tunable():
            total += policy.tuning_counts
        return total

    def learned(self, max_tokens: int) -> "CalibrationFile | None":
        """What another speculator of the same target could start from: `calibrated` takes it. Texts of requests with a
        cache salt are not in it. None if no policy in use learns.
        """
        return next((policy.learned(max_tokens) for policy in self._tunable()), None)

    def _tunable(self) -> list[TunablePolicy]:
        return [policy for policy in self._policies.values() if isinstance(policy, TunablePolicy)]

    def _policy(self, name: str) -> TreePolicy:
        if name not in self._builders:
            raise UnknownNameError(f"no policy {name!r}; known: {', '.join(sorted(self._builders))}")
        if name not in self._policies:
            policy = self._policies[name] = self._builders[name](self._sources)
            if isinstance(policy, TunablePolicy):
                policy.tune(self._tuning)
        return self._policies[name]
