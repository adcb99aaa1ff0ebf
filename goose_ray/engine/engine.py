"""The engine of one replica: requests in, tokens out, one batched forward a step.

Synchronous and single-threaded: whoever owns it calls `step` while there is work. Knows no thread, no event loop and
nothing about how a forward is computed.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from goose.calibration import AcceptanceTable
from goose.cost import CostModel
from goose.speculator import AUTOMATIC_NODES
from goose.tree import TokenTree
from goose_ray.config import EngineConfig
from goose_ray.engine.batch import build_batch, row_counts
from goose_ray.engine.draft_pace import DraftPlan
from goose_ray.engine.drafting import BatchSpeculator, Drafting
from goose_ray.engine.grammar import Grammar
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_drafting import GrammarDrafting
from goose_ray.engine.grammar_vocabulary import MaskArray
from goose_ray.engine.intake import Intake
from goose_ray.engine.kv_memory import KVMemory
from goose_ray.engine.learning import Learning
from goose_ray.engine.request import FinishReason, GenerationRequest, RequestOutput
from goose_ray.engine.scheduler import Schedule, Scheduler
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.stats import EngineStats, add_sources
from goose_ray.engine.stats_recorder import StatsRecorder
from goose_ray.engine.step import ModelRunner, ModelSpec, StepBatch
from goose_ray.engine.step_commit import CommittedStep, commit_step
from goose_ray.engine.step_cost import StepCost
from goose_ray.engine.step_delivery import ABORTED, deliver_step
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.engine.trace import StepRecord, StepTrace, record_step
from goose_ray.engine.tree_trace import TreeTrace
from goose_ray.errors import EngineDeadError, InvalidRequestError, OverloadedError

__all__ = ["Engine"]

_logger = logging.getLogger(__name__)

# From so many sequences in a step on, the logits of prompt rows (a fifth of what such a row takes) hold up more replies
# than the few tokens are worth that are drafted better for them.
_MANY_SEQUENCES = 4


class Engine:
    """Requests are served first come, first served; their output does not depend on who shares the batch.

    An exception of the runner, or a fault of the engine itself, kills the engine: the KV of every sequence is then in
    doubt. An exception that belongs to one request (its detokenisation) aborts that request alone.

    `cost` predicts the duration of steps and learns from them; without it an automatic budget is a fixed one.
    """

    def __init__(
        self,
        runner: ModelRunner,
        speculator: BatchSpeculator,
        tokenizer: Tokenizer,
        config: EngineConfig,
        *,
        cost: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._speculator = speculator
        self._tokenizer = tokenizer
        self._config = config
        self._cost = StepCost(cost)
        self._clock = clock
        spec = runner.spec
        self._intake = Intake(spec, tokenizer, policies=speculator.policies, max_model_len=config.max_model_len)
        self._drafting = Drafting(speculator, spec.vocab_size)
        self.learning = Learning(speculator)
        self._grammar_drafting = GrammarDrafting.of(config)
        self._memory = KVMemory(spec.num_slots, prefix_cache=config.prefix_cache)
        self._scheduler = Scheduler(
            self._memory,
            max_batch_rows=config.max_batch_rows,
            max_running_requests=config.max_running_requests,
            budget=AUTOMATIC_NODES if config.budget == "auto" else config.budget,
        )
        self._sequences: dict[str, SequenceState] = {}
        self._stats = StatsRecorder()
        self.trace = StepTrace()
        self.tree_trace = TreeTrace(with_tokens=config.trace_tokens)
        self._death: Exception | None = None

    @property
    def spec(self) -> ModelSpec:
        return self._runner.spec

    @property
    def policies(self) -> tuple[str, ...]:
        """Names that a request's `policy` may have."""
        return self._speculator.policies

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        """Most tokens, prompt and max_tokens together, that a request may have: what model, configuration and KV pool
        all allow.
        """
        return self._intake.max_request_tokens

    @property
    def grammars(self) -> GrammarCompiler:
        return self._intake.grammars

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def stats(self) -> EngineStats:
        self._stats.num_draft_errors = self._drafting.num_errors
        return self._stats.snapshot(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            slots_used=self._memory.num_used,
            slots_total=self._memory.num_slots,
        )

    def acceptance(self) -> AcceptanceTable:
        """Cumulative acceptance by source, a copy."""
        return self._speculator.counters()

    def check_health(self) -> None:
        """Raises EngineDeadError if no step can succeed any more. May be called from any thread."""
        self._require_alive()
        self._runner.check_health()

    def shutdown(self) -> None:
        """Frees the runner's memory. Idempotent; no step may follow."""
        self._runner.shutdown()

    def check_integrity(self) -> None:
        """Raises RuntimeError if, between steps, a slot is neither free, nor cached, nor in a sequence's context."""
        self._memory.check_integrity(self._sequences.values())
        if self._scheduler.num_requests != len(self._sequences):
            raise RuntimeError(f"{self._scheduler.num_requests} of {len(self._sequences)} requests are scheduled")

    def add_request(
        self, request: GenerationRequest, *, arrived_s: float | None = None, grammar: Grammar | None = None
    ) -> None:
        """Queues a request; `arrived_s` is when it came in, by the engine's clock. `grammar` is what `grammars` made of
        its structured output; without it that is done here, which may take long.

        Raises InvalidRequestError if it can never be served, OverloadedError if too many wait already. Neither leaves
        anything behind.
        """
        self._require_alive()
        if request.request_id in self._sequences:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use", "request_id")
        self._intake.check(request)
        max_requests = self._config.max_running_requests + self._config.max_waiting_requests
        if self._scheduler.num_requests >= max_requests:
            raise OverloadedError(f"the engine holds {max_requests} requests, as many as it may; try again later")
        arrived_s = self._clock() if arrived_s is None else arrived_s
        sequence = self._intake.sequence(request, arrived_s=arrived_s, grammar=grammar)
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """Frees the sequence and its slots at once. A request that is unknown or has finished is left as it is."""
        if sequence := self._sequences.get(request_id):
            self._finish(sequence, "abort")

    def abort_all(self) -> list[RequestOutput]:
        """Ends every request; one last output for each."""
        outputs = []
        for sequence in list(self._sequences.values()):
            self._finish(sequence, "abort")
            outputs.append(sequence.report(ABORTED))
        return outputs

    def step(self) -> list[RequestOutput]:
        """One forward, and what it added to each request. Raises EngineDeadError, from then on always."""
        self._require_alive()
        if not self.has_work:
            return []
        try:
            return self._step()
        except Exception as error:
            self._death = error
            raise EngineDeadError(f"step {self._stats.num_steps} failed: {error}") from error

    def _step(self) -> list[RequestOutput]:
        started_s = self._clock()
        schedule = self._schedule()
        scheduled_s = self._clock()
        plan = self._cost.plan
        trees, masks = self._draft(schedule, plan)
        draft_s = self._clock() - scheduled_s
        batch = self._batch(schedule, trees, masks, plan)
        result = self._runner.execute(batch)
        deliveries = deliver_step(schedule.sequences, batch, result)
        committed = commit_step(schedule.sequences, batch, result, deliveries, self._memory)
        committed_s = self._clock()
        counts = self._drafting.observe(committed.outcomes, committed.harvest, at_once=plan.learns)
        learn_s = self._clock() - committed_s
        outputs = self._report(batch.step_id, committed, counts)
        step_s = self._clock() - started_s
        num_committed = [0 if delivery is None else delivery.num_committed for delivery in deliveries]
        predicted_s = self._cost.observe(
            batch,
            step_s=step_s,
            speculation_s=draft_s + learn_s,
            drafted=plan.drafts,
            num_committed=sum(num_committed),
        )
        self._record(record_step(batch, result, num_committed, draft_s=draft_s, step_s=step_s, predicted_s=predicted_s))
        return outputs

    def _schedule(self) -> Schedule:
        schedule = self._scheduler.schedule(self._cost.nodes_per_tree)
        if not schedule.sequences:
            raise RuntimeError(f"nothing could be scheduled of {self._scheduler.num_requests} requests")
        self._stats.num_preemptions += len(schedule.preempted)
        now_s = self._clock()
        for entry in schedule.sequences:
            self._stats.record_admission(entry.sequence, now_s)
        return schedule

    def _draft(self, schedule: Schedule, plan: DraftPlan) -> tuple[list[TokenTree | None], dict[str, MaskArray]]:
        for entry in schedule.sequences:
            self._drafting.start(entry.sequence)
        with_tree = [entry.sequence for entry in schedule.sequences if entry.has_tree]
        max_nodes = schedule.max_draft_nodes
        num_reserved = self._grammar_drafting.num_reserved(with_tree, max_nodes)
        proposed = self._drafting.propose(
            with_tree, max_nodes - num_reserved, lambda: self._cost.seconds(schedule), resting=not plan.drafts
        )
        constrained, masks = self._grammar_drafting.constrain(with_tree, proposed, max_nodes)
        trees = iter(constrained)
        return [next(trees) if entry.has_tree else None for entry in schedule.sequences], masks

    def _batch(
        self, schedule: Schedule, trees: Sequence[TokenTree | None], masks: Mapping[str, MaskArray], plan: DraftPlan
    ) -> StepBatch:
        slots = self._memory.allocate(row_counts(schedule.sequences, trees))
        return build_batch(
            schedule.sequences,
            trees,
            slots,
            step_id=self._stats.num_steps,
            harvest_k=min(self._speculator.harvest_k, self.spec.vocab_size) if plan.learns else 0,
            harvest_prompts=len(schedule.sequences) < _MANY_SEQUENCES or self._speculator.needs_prompts,
            token_masks=masks,
        )

    def _report(
        self, step_id: int, committed: CommittedStep, counts: Sequence[Mapping[str, tuple[int, int]]]
    ) -> list[RequestOutput]:
        """`counts` are drafted and accepted tokens by source, for each outcome."""
        self.tree_trace.observe(step_id, committed.outcomes)
        now_s = self._clock()
        outputs = []
        for (sequence, delivery), outcome, by_source in zip(
            committed.advanced, committed.outcomes, counts, strict=True
        ):
            self._stats.record_tree(outcome.tree.num_draft_nodes, len(outcome.accepted_nodes), by_source)
            add_sources(sequence.by_source, by_source)
            self._stats.record_tokens(sequence, len(delivery.token_ids), now_s)
            if delivery.finish_reason:
                self._finish(sequence, delivery.finish_reason)
            if delivery.finish_reason or delivery.token_ids or delivery.text:
                outputs.append(sequence.report(delivery))
        return outputs

    def _finish(self, sequence: SequenceState, reason: FinishReason) -> None:
        self._scheduler.remove(sequence)
        self._drafting.stop(sequence.request_id)
        del self._sequences[sequence.request_id]
        self._stats.record_finish(reason, seconds=self._clock() - sequence.arrived_s)

    def _record(self, record: StepRecord) -> None:
        self.trace.append(record)
        self._stats.record_step(record)
        if self._config.step_log:
            _logger.info("%s", record)

    def _require_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(f"the engine is dead: {self._death}") from self._death
