"""The engine's side of the cost model: what a step's duration depends on, what more tree nodes would add to it, and
whether looking for them is worth its time.

Knows no trees' contents and no policy.
"""

import numpy as np

from goose.cost import CostModel, StepShape
from goose.tree import FloatArray
from goose_ray.engine.draft_pace import DraftPace, DraftPlan
from goose_ray.engine.scheduler import Schedule
from goose_ray.engine.step import StepBatch

__all__ = ["StepCost", "shape_of"]

# Standard deviations by which a size that was not seen for long is taken to be cheaper, so that it is tried again.
_OPTIMISM = 0.5
_LEAST_SECONDS = 1e-6
# How fast the time that looking for drafts takes follows the last steps.
_SPECULATION_RATE = 0.1
# Of the size of trees: how fast it is followed, how many times it room is kept for, and what it is taken for at first.
_NODES_RATE, _NODES_MARGIN, _NODES_AT_FIRST = 0.05, 2.0, 4.0
# A step of more rows than so many times those of its trees is one of prefill. Trees of as many rows would take no more
# than so many times as long.
_MOST_PREFILL, _PREFILL_MARGIN = 2, 2.0
# More than trees mostly have.
_MOST_ROWS_OF_TREES = 64
_ALWAYS = DraftPlan(drafts=True, learns=True)


class StepCost:
    """What the engine asks of its cost model; without one, nothing is known and nothing learned."""

    def __init__(self, model: CostModel | None) -> None:
        self._model = model
        self._pace = DraftPace()
        # of looking for drafts and learning from them, of late
        self._speculation_s = 0.0
        # nodes of a tree, anchor included, of late
        self._nodes = _NODES_AT_FIRST

    @property
    def plan(self) -> DraftPlan:
        """Of the next step. Where nothing is known, nothing speaks against drafts."""
        return _ALWAYS if self._model is None else self._pace.plan

    @property
    def nodes_per_tree(self) -> float | None:
        """What a step should keep room for; None: nothing is known, and trees are as large as they were asked for."""
        return None if self._model is None else _NODES_MARGIN * self._nodes

    def seconds(self, schedule: Schedule) -> FloatArray | None:
        """[most nodes + 1] float32: predicted duration of the scheduled step with r tree nodes, anchors included.

        A node costs what it adds to this step, its prefill included. But prefill takes its time whatever is drafted, so
        what it takes is left out: the anchors alone have the duration of a step without it. Otherwise a node would seem
        cheap in a long step, as if its tokens were all that the step is for. Drafting, which has to be paid whatever it
        finds, is in all of them.
        """
        if self._model is None or not self._model.num_observed:
            return None
        entries = schedule.sequences
        contexts = [entry.sequence.num_computed for entry in entries]
        # An anchor is a node of its tree.
        others = [entry.num_chain - entry.has_tree for entry in entries]
        in_trees = [context for entry, context in zip(entries, contexts, strict=True) if entry.has_tree]
        fixed = StepShape(
            rows=sum(others),
            sequences=len(entries),
            context=sum(contexts),
            attended=sum(rows * context for rows, context in zip(others, contexts, strict=True)),
        )
        num_trees, in_context = len(in_trees), sum(in_trees)
        seconds = self._model.curve(
            fixed,
            num_trees + schedule.max_draft_nodes,
            context_per_row=in_context / max(1, num_trees),
            optimism=_OPTIMISM,
        )
        if fixed.rows and num_trees:
            alone = self._model.predict(StepShape(num_trees, num_trees, in_context, in_context))
            seconds = np.maximum(seconds - seconds[num_trees] + np.float32(alone), np.float32(_LEAST_SECONDS))
        return seconds + np.float32(self._speculation_s)

    def observe(
        self, batch: StepBatch, *, step_s: float, speculation_s: float, drafted: bool, num_committed: int
    ) -> float | None:
        """Learns what a step took, `speculation_s` of it before there were trees and by learning from them, and what
        `drafted`, looking for drafts, was worth; returns what the step had been predicted to take.

        The forward is learned apart. Else a step without drafts, which has none of it, would be predicted from steps
        with drafts to take longer than it does, and drafts seem cheap beside it.
        """
        if self._model is None:
            return None
        shape = shape_of(batch)
        sizes = [step.tree.num_nodes for step in batch.sequences if step.tree is not None]
        if sizes:
            self._nodes += _NODES_RATE * (sum(sizes) / len(sizes) - self._nodes)
        predicted = None
        if self._model.num_observed:
            predicted = self._model.predict(shape)
            if not drafted:
                self._pace.rested(num_sequences=shape.sequences)
            else:
                self._account(batch, shape, predicted, speculation_s, num_committed)
        # Rows of a prefill have no logits, a third of a small model's work: steps of many of them would make trees look
        # cheap, and the surprise be laid on what is not known well, such as the price of a sequence. They only say what
        # is too dear: of a size that a busy moment made look so no tree would ever tell otherwise, as none is tried.
        took_s = step_s - speculation_s
        if shape.rows <= _MOST_PREFILL * sum(sizes):
            self._model.observe(shape, took_s)
        elif predicted is not None and shape.rows <= _MOST_ROWS_OF_TREES and predicted > _PREFILL_MARGIN * took_s:
            self._model.observe(shape, _PREFILL_MARGIN * took_s)
        return None if predicted is None else predicted + speculation_s

    def _account(
        self, batch: StepBatch, shape: StepShape, predicted: float, speculation_s: float, num_committed: int
    ) -> None:
        """By what the step was predicted to take, not what it took: that has the noise of this step in it, and what was
        predicted, that of all steps so far. Prefill would have been the same without drafts.
        """
        assert self._model is not None
        trees = [(len(step.context_slots), step.tree.num_nodes) for step in batch.sequences if step.tree is not None]
        if not trees:
            return
        context = sum(num_context for num_context, _ in trees)
        plain = alone = self._model.predict(StepShape(len(trees), len(trees), context, context))
        num_drafts = sum(num_nodes for _, num_nodes in trees) - len(trees)
        if shape.rows == num_drafts + len(trees):
            self._speculation_s += _SPECULATION_RATE * (speculation_s - self._speculation_s)
        else:
            attended = shape.attended - sum((num_nodes - 1) * num_context for num_context, num_nodes in trees)
            alone = self._model.predict(StepShape(shape.rows - num_drafts, shape.sequences, shape.context, attended))
            # What it began by starting requests is no part of looking for drafts.
            speculation_s = self._speculation_s
        self._pace.drafted(
            num_sequences=len(trees),
            num_committed=num_committed,
            seconds=plain + max(0.0, predicted - alone) + speculation_s,
            plain_seconds=plain,
        )


def shape_of(batch: StepBatch) -> StepShape:
    contexts = [len(step.context_slots) for step in batch.sequences]
    counts = [step.row_end - step.row_start for step in batch.sequences]
    return StepShape(
        rows=batch.num_rows,
        sequences=len(contexts),
        context=sum(contexts),
        attended=sum(rows * context for rows, context in zip(counts, contexts, strict=True)),
    )
