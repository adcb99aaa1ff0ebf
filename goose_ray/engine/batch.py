"""One step as flat arrays: the scheduled chains and their trees, without padding; and what came back, by source row.

Layout and meaning of the rows are `goose_ray.engine.step`'s. Changes nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from goose.observation import Harvest, HarvestOrigin
from goose.tree import BoolArray, IntArray, TokenTree
from goose_ray.engine.scheduler import ScheduledSequence
from goose_ray.engine.sequence import SequenceState
from goose_ray.engine.step import HarvestRows, SequenceStep, StepBatch, VerifiedPath

__all__ = ["build_batch", "harvest_of", "kept_rows", "row_counts"]


def row_counts(
    scheduled: Sequence[ScheduledSequence], trees: Sequence[TokenTree | None]
) -> list[tuple[SequenceState, int]]:
    """How many rows each sequence has."""
    return [
        (entry.sequence, entry.num_chain + (0 if tree is None else tree.num_draft_nodes))
        for entry, tree in zip(scheduled, trees, strict=True)
    ]


def build_batch(
    scheduled: Sequence[ScheduledSequence],
    trees: Sequence[TokenTree | None],
    slots: IntArray,
    *,
    step_id: int,
    harvest_k: int,
    harvest_prompts: bool = True,
    token_masks: Mapping[str, NDArray[np.int32]] | None = None,
) -> StepBatch:
    """`trees[i]` is None where entry i has none; `slots` has one entry a row. `token_masks` are by request id."""
    # Pieces of the flattened arrays, with parents relative to the sequence's first row and positions relative to its
    # first uncomputed token; concatenated once, then shifted for all sequences at once.
    tokens: list[IntArray] = []
    parents: list[IntArray] = []
    depths: list[IntArray] = []
    sequences: list[SequenceStep] = []
    row = 0
    for entry, tree in zip(scheduled, trees, strict=True):
        sequence, num_chain = entry.sequence, entry.num_chain
        num_computed = sequence.num_computed
        start = row
        if tree is None or num_chain > 1:
            chain = np.arange(num_chain)
            tokens.append(sequence.tokens.view(num_computed)[:num_chain])
            parents.append(chain - 1)
            depths.append(chain)
            row += num_chain
            if tree is not None:
                tokens.append(tree.token_ids[1:])
                parents.append(tree.parents[1:] + (num_chain - 1))
                depths.append(tree.depths[1:] + (num_chain - 1))
                row += tree.num_draft_nodes
        else:
            tokens.append(tree.token_ids)
            parents.append(tree.parents)
            depths.append(tree.depths)
            row += tree.num_nodes
        sequences.append(
            SequenceStep(
                request_id=sequence.request_id,
                row_start=start,
                row_end=row,
                num_chain=num_chain,
                context_slots=sequence.context_slots.view(),
                tree=tree,
                sampling=sequence.sampling,
                output_position=sequence.num_output,
                # A tree's own rows are harvested anyway, the anchor included.
                harvest_chain=harvest_prompts
                and num_computed + num_chain - (tree is not None) > sequence.num_harvested,
                logit_rules=sequence.logit_rules,
                scored_ids=sequence.prompt_scores.wanted(sequence.tokens.view(), num_computed, num_chain),
                token_masks=token_masks.get(sequence.request_id) if token_masks else None,
            )
        )
    counts = [step.row_end - step.row_start for step in sequences]
    row_starts = np.repeat([step.row_start for step in sequences], counts)
    relative = np.concatenate(parents)
    return StepBatch(
        step_id=step_id,
        token_ids=np.concatenate(tokens),
        positions=np.concatenate(depths) + np.repeat([len(step.context_slots) for step in sequences], counts),
        slots=slots,
        parents=np.where(relative < 0, -1, relative + row_starts),
        sequences=tuple(sequences),
        harvest_k=harvest_k,
    )


def kept_rows(batch: StepBatch, paths: Sequence[VerifiedPath | None]) -> BoolArray:
    """[num_rows] bool: rows whose KV stays, those of the chains and of the verified paths."""
    # A list of Python's: a few array operations a sequence would take several times as long.
    keep = [False] * batch.num_rows
    for step, path in zip(batch.sequences, paths, strict=True):
        anchor = step.row_start + step.num_chain - 1
        keep[step.row_start : anchor + 1] = [True] * step.num_chain
        if path is not None:
            for node in path.accepted_nodes.tolist():
                keep[anchor + node] = True
    return np.array(keep, dtype=np.bool_)


def harvest_of(
    batch: StepBatch, scheduled: Sequence[ScheduledSequence], harvested: HarvestRows, keep: BoolArray
) -> Harvest:
    """The harvest with the tokens that its rows continue and where they stand; `keep` is what `kept_rows` gave."""
    before_first = np.full(batch.num_rows, -1, dtype=np.int64)
    for step, entry in zip(batch.sequences, scheduled, strict=True):
        if num_context := len(step.context_slots):
            before_first[step.row_start] = entry.sequence.tokens[num_context - 1]
    rows = harvested.rows
    parents = batch.parents[rows]
    counts = [step.row_end - step.row_start for step in batch.sequences]
    return Harvest(
        previous_ids=np.where(parents < 0, before_first[rows], batch.token_ids[parents]),
        token_ids=batch.token_ids[rows],
        top_ids=harvested.top_ids,
        top_probs=harvested.top_probs,
        origin=HarvestOrigin(
            request_ids=tuple(step.request_id for step in batch.sequences),
            requests=np.repeat(np.arange(len(counts)), counts)[rows],
            positions=np.where(keep[rows], batch.positions[rows], -1),
        ),
    )
