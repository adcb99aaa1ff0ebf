"""One request's sequence in the engine: its tokens, the KV slots of those that are computed, its counts.

*Committed* tokens are the prompt and the output so far. Those without KV are the *chain*: the whole prompt at
first, the anchor alone once decoding. A preempted sequence is one with nothing computed, no more.
"""

from enum import Enum

import numpy as np
from numpy.typing import ArrayLike

from goose.observation import TreeOutcome
from goose.tree import IntArray, TokenTree
from goose.verify import VerifiedPath
from goose_ray.engine.delivery import Delivery, OutputStream
from goose_ray.engine.grammar import GrammarState
from goose_ray.engine.kv_cache import Region
from goose_ray.engine.logit_rules import LogitRules
from goose_ray.engine.prefix_cache import Pin
from goose_ray.engine.prompt_scores import PromptScores
from goose_ray.engine.request import GenerationRequest, RequestOutput, SourceStats, SpeculationStats
from goose_ray.errors import InvalidRequestError

__all__ = ["IntBuffer", "SequenceState", "SequenceStatus"]


class IntBuffer:
    """A growing int64 array."""

    __slots__ = ("_array", "_size")

    def __init__(self, values: ArrayLike = ()) -> None:
        self._array: IntArray = np.array(values, dtype=np.int64)
        self._size = len(self._array)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return int(self.view()[index])

    def view(self, start: int = 0) -> IntArray:
        """The values from `start` on, without copying: valid until the buffer changes, not to be written to."""
        return self._array[start : self._size]

    def extend(self, values: IntArray) -> None:
        size = self._size + len(values)
        if size > len(self._array):
            grown = np.empty(max(64, 2 * size), dtype=np.int64)
            grown[: self._size] = self._array[: self._size]
            self._array = grown
        self._array[self._size : size] = values
        self._size = size

    def overwrite(self, start: int, values: IntArray) -> None:
        """Replaces the values from `start` on, within the size. Views show it."""
        self.view(start)[: len(values)] = values

    def clear(self) -> None:
        self._array, self._size = np.empty(0, dtype=np.int64), 0


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class SequenceState:
    """Mutable, owned by the engine's thread."""

    __slots__ = (
        "_accepted",
        "_generated",
        "_logit_rules",
        "arrived_s",
        "by_source",
        "context_slots",
        "grammar",
        "last_token_s",
        "num_cached",
        "num_doubled",
        "num_drafted",
        "num_harvested",
        "num_prompt",
        "num_steps",
        "output",
        "prefix",
        "prompt_scores",
        "queued_s",
        "rank",
        "region",
        "request",
        "request_id",
        "sampling",
        "status",
        "tokens",
    )

    def __init__(
        self,
        request: GenerationRequest,
        output: OutputStream,
        *,
        arrived_s: float,
        logit_rules: LogitRules | None = None,
        grammar: GrammarState | None = None,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.sampling = request.sampling
        self.output = output
        self._logit_rules = logit_rules
        # where its output is in its grammar
        self.grammar = grammar
        self.status = SequenceStatus.WAITING
        # priority and arrival, of which the least comes first; the scheduler's
        self.rank = (request.priority, 0)
        # committed tokens, prompt and output
        self.tokens = IntBuffer(request.prompt_token_ids)
        self.num_prompt = len(request.prompt_token_ids)
        self.prompt_scores = PromptScores(self.num_prompt, request.sampling)
        # slots of the tokens that are computed, in position order
        self.context_slots = IntBuffer()
        # what the prefix cache holds of it; None: nothing is attached
        self.prefix: Pin | None = None
        # The slots of that prefix belong to the cache, but for so many at the beginning: these tokens are in slots of
        # its own too.
        self.num_doubled = 0
        # where in the pool its own slots are wanted; None: it has none yet
        self.region: Region | None = None
        # prompt tokens found in the prefix cache when it was first admitted; None: it was not yet
        self.num_cached: int | None = None
        # positions before this one were harvested once; a recomputed prefix need not be again
        self.num_harvested = 0
        # forwards in which it had a tree
        self.num_steps = 0
        self.num_drafted = 0
        self.by_source: dict[str, SourceStats] = {}
        # one byte an output token: 1 for an accepted token, 0 for a bonus token
        self._accepted = bytearray()
        self.arrived_s = arrived_s
        # seconds until it was first admitted
        self.queued_s = 0.0
        self.last_token_s: float | None = None
        # what another engine generated and no report has repeated yet
        self._generated: Delivery | None = None
        if request.committed_ids:
            self._go_on_behind(request.committed_ids)

    def _go_on_behind(self, token_ids: tuple[int, ...]) -> None:
        """As if it had been preempted behind these output tokens. They count as bonus tokens of a step each.

        Raises InvalidRequestError if the output ends within them.
        """
        self._generated = self.output.push(token_ids)
        if self._generated.finish_reason is not None or self._generated.num_committed < len(token_ids):
            raise InvalidRequestError("the output ends within committed_ids: nothing can follow", "committed_ids")
        if self.grammar is not None:
            self.grammar.advance(token_ids)
        self._append(np.array(token_ids, dtype=np.int64), num_accepted=0)
        self.num_steps = len(token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_computed(self) -> int:
        return len(self.context_slots)

    @property
    def num_uncomputed(self) -> int:
        """Length of the chain: what must be computed before the next token. At least 1."""
        return len(self.tokens) - len(self.context_slots)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Output tokens that max_tokens still allows. At least 1 until the sequence finishes."""
        return self.sampling.max_tokens - self.num_output

    @property
    def logit_rules(self) -> LogitRules | None:
        """None if from the next token on the logits are left as they are."""
        rules = self._logit_rules
        return rules if rules is not None and rules.apply_from(self.num_output) else None

    def computed(self, slots: IntArray) -> None:
        """The KV of the next tokens is in these slots."""
        self.context_slots.extend(slots)
        self.num_harvested = max(self.num_harvested, self.num_computed)

    def commit(self, tree: TokenTree, path: VerifiedPath, num_committed: int) -> TreeOutcome:
        """Appends the first `num_committed` tokens of a verified path."""
        num_accepted = min(num_committed, len(path.accepted_nodes))
        committed_ids = path.token_ids[:num_committed]
        self._append(committed_ids, num_accepted)
        self.num_steps += 1
        self.num_drafted += tree.num_draft_nodes
        return TreeOutcome(
            request_id=self.request_id,
            tree=tree,
            accepted_nodes=path.accepted_nodes[:num_accepted],
            committed_ids=committed_ids,
            bonus_id=int(path.token_ids[num_accepted]),
        )

    def _append(self, token_ids: IntArray, num_accepted: int) -> None:
        self.tokens.extend(token_ids)
        if self._logit_rules is not None:
            self._logit_rules.commit(token_ids)
        self._accepted += b"\1" * num_accepted + b"\0" * (len(token_ids) - num_accepted)

    def report(self, delivery: Delivery) -> RequestOutput:
        """What the client gets of a step. With the first go the prompt's scores, and what another engine generated."""
        before, self._generated = self._generated, None
        return RequestOutput(
            request_id=self.request_id,
            text=delivery.text if before is None else before.text + delivery.text,
            token_ids=delivery.token_ids if before is None else before.token_ids + delivery.token_ids,
            finish_reason=delivery.finish_reason,
            stop_reason=delivery.stop_reason,
            logprobs=delivery.logprobs,
            prompt_logprobs=self.prompt_scores.take(),
            error=delivery.error,
            stats=self.stats(num_withdrawn=delivery.num_withdrawn),
            num_cached_tokens=self.num_cached or 0,
            queued_s=self.queued_s,
        )

    def stats(self, *, num_withdrawn: int = 0) -> SpeculationStats:
        """Counts so far. The last `num_withdrawn` tokens, those of a trimmed stop string, are neither committed nor
        accepted; what they were to the sources is not taken back.
        """
        committed = len(self._accepted) - num_withdrawn
        return SpeculationStats(
            steps=self.num_steps,
            drafted=self.num_drafted,
            accepted=self._accepted.count(1, 0, committed),
            committed=committed,
            by_source=dict(self.by_source),
        )
