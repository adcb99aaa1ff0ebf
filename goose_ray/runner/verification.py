"""Verification next to the logits: scores of the rows that are needed, then the walk down every tree.

Tree rows always need logits, chain rows only where their successors are harvested. They are computed in chunks, and
of a chunk only what is asked for is kept, so that memory does not grow with prompt x vocabulary.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from goose.tree import BoolArray, IntArray
from goose.verify import VerifiedPath, walk_batch
from goose_ray.engine.logprobs import PathLogprobs
from goose_ray.engine.step import HarvestRows, SequenceStep, StepBatch, StepOutput
from goose_ray.runner.harvest import LogitRows
from goose_ray.runner.logprobs import path_logprobs
from goose_ray.runner.noise import noise_keys
from goose_ray.runner.processing import RuledRow, apply_masks, apply_rules
from goose_ray.runner.prompt_scoring import PromptScoring
from goose_ray.runner.sampler import SamplingRows, sample

__all__ = ["ROWS_PER_CHUNK", "RowScores", "RowUses", "on_device", "score_rows", "step_output", "verify_trees"]

# Logits held at once: 128 rows of a 150k vocabulary are 77 MB.
ROWS_PER_CHUNK = 128


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """What the logits of a step came to. `T` is the number of rows of the batch."""

    # [num_sequences] bool: sequences whose tokens are known without a look at `kept_logits`
    decided: BoolArray
    # [T] int64: what such a sequence chooses at its tree rows (greedy: the lowest id of equals), else unspecified
    decided_ids: IntArray
    # [num_kept, vocab] float32: the model's logits at the tree rows where they are needed for more
    kept_logits: torch.Tensor
    # [T] int64: row of `kept_logits`, -1 for other rows
    kept_index: IntArray
    harvest: HarvestRows | None
    # of `SequenceStep.scored_ids`
    prompt_logprobs: tuple[PathLogprobs | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RowUses:
    """What the logits of each row of a batch are wanted for, [T] bool each."""

    # rows that need logits at all: trees, and chains that are harvested
    needed: BoolArray
    # tree rows of decided sequences
    decided: BoolArray
    # tree rows whose logits are kept: of sequences that are not decided, or that want log-probabilities
    kept: BoolArray

    @classmethod
    def of(cls, batch: StepBatch, decided: BoolArray) -> "RowUses":
        """`decided` [num_sequences] bool as in `RowScores`."""
        uses = cls(*(np.zeros(batch.num_rows, dtype=np.bool_) for _ in range(3)))
        for sequence, is_decided in zip(batch.sequences, decided.tolist(), strict=True):
            anchor = sequence.row_start + sequence.num_chain - 1
            if sequence.tree is not None:
                rows = slice(anchor, sequence.row_end)
                uses.needed[rows] = True
                uses.decided[rows] = is_decided
                uses.kept[rows] = not is_decided or sequence.sampling.logprobs is not None
            if sequence.harvest_chain and batch.harvest_k:
                uses.needed[sequence.row_start : anchor + 1] = True
        return uses

    def kept_index(self) -> IntArray:
        """[T] int64: the place of each row among the kept ones, -1 for other rows."""
        index = np.full(len(self.kept), -1, dtype=np.int64)
        index[self.kept] = np.arange(np.count_nonzero(self.kept))
        return index


def score_rows(batch: StepBatch, hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]) -> RowScores:
    """hidden [T, hidden_size]; `head` maps [n, hidden_size] to [n, vocab] float32 logits."""
    decided = np.array([_is_plain(sequence) for sequence in batch.sequences], dtype=np.bool_)
    uses = RowUses.of(batch, decided)
    prompts = PromptScoring(batch)
    uses.needed[prompts.rows] = True
    kept = uses.kept
    decided_ids = np.zeros(batch.num_rows, dtype=np.int64)
    rows = np.flatnonzero(uses.needed)
    kept_parts: list[torch.Tensor] = []
    top_ids: list[torch.Tensor] = []
    top_probs: list[torch.Tensor] = []
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        logits = head(hidden if len(chunk) == len(hidden) else hidden[on_device(hidden.device, chunk)])
        of_chunk = LogitRows(logits)
        if uses.decided[chunk].any():
            decided_ids[chunk] = of_chunk.likeliest().cpu().numpy()
        if kept[chunk].all():
            kept_parts.append(logits)
        elif kept[chunk].any():
            kept_parts.append(logits[on_device(logits.device, np.flatnonzero(kept[chunk]))])
        prompts.score(chunk, logits)
        if batch.harvest_k:
            ids, probs = of_chunk.successors(batch.harvest_k)
            top_ids.append(ids)
            top_probs.append(probs)
    return RowScores(
        decided=decided,
        decided_ids=decided_ids,
        kept_logits=kept_parts[0] if len(kept_parts) == 1 else torch.cat(kept_parts or [hidden[:0]]),
        kept_index=uses.kept_index(),
        harvest=HarvestRows(rows, torch.cat(top_ids).cpu().numpy(), torch.cat(top_probs).cpu().numpy())
        if top_ids
        else None,
        prompt_logprobs=prompts.result(),
    )


def verify_trees(batch: StepBatch, scores: RowScores) -> tuple[VerifiedPath | None, ...]:
    """One entry a sequence, None where it has no tree. Tokens are chosen at reached nodes only."""
    paths: list[VerifiedPath | None] = [None] * len(batch.sequences)
    # Numbers of Python's own: most trees are small, and a few array operations a level would take longer.
    tokens, parents, chosen = batch.token_ids.tolist(), batch.parents.tolist(), scores.decided_ids.tolist()
    undecided: list[int] = []
    for index, (sequence, is_decided) in enumerate(zip(batch.sequences, scores.decided.tolist(), strict=True)):
        if sequence.tree is None:
            continue
        if is_decided:
            anchor = sequence.row_start + sequence.num_chain - 1
            paths[index] = _followed(tokens, parents, chosen, anchor, sequence.row_end)
        else:
            undecided.append(index)
    for index, path in zip(undecided, _drawn([batch.sequences[i] for i in undecided], scores), strict=True):
        paths[index] = path
    return tuple(paths)


def step_output(batch: StepBatch, scores: RowScores, *, started: float) -> StepOutput:
    """What the step came to; it has taken since `started`, of `time.perf_counter`."""
    paths = verify_trees(batch, scores)
    return StepOutput(
        paths=paths,
        harvest=scores.harvest,
        logprobs=path_logprobs(scores.kept_logits, scores.kept_index, batch.sequences, paths),
        prompt_logprobs=scores.prompt_logprobs,
        forward_s=time.perf_counter() - started,
    )


def _followed(
    tokens: Sequence[int], parents: Sequence[int], chosen: Sequence[int], anchor: int, end: int
) -> VerifiedPath:
    """The walk from row `anchor` down the rows up to `end`, where `chosen` is known at all of them.

    Children stand behind their parent, so one look at each row finds the first child that is right.
    """
    at, wanted = anchor, chosen[anchor]
    accepted: list[int] = []
    path = [wanted]
    for row in range(anchor + 1, end):
        if parents[row] == at and tokens[row] == wanted:
            at, wanted = row, chosen[row]
            accepted.append(row - anchor)
            path.append(wanted)
    return VerifiedPath(np.array(accepted, dtype=np.int64), np.array(path, dtype=np.int64))


def _drawn(sequences: Sequence[SequenceStep], scores: RowScores) -> list[VerifiedPath]:
    """Of sequences with a tree, whose choice depends on the path so far."""
    trees = [sequence.tree for sequence in sequences if sequence.tree is not None]
    anchors = np.array([sequence.row_start + sequence.num_chain - 1 for sequence in sequences], dtype=np.int64)
    # What was chosen so far: whoever is still walking has had all of it accepted.
    chosen: list[list[int]] = [[] for _ in sequences]

    def draw(walking: IntArray, nodes: IntArray) -> IntArray:
        which = walking.tolist()
        # A copy: what the rules change in it is not the model's any more.
        logits = scores.kept_logits[on_device(scores.kept_logits.device, scores.kept_index[anchors[walking] + nodes])]
        tokens = _choose(logits, [sequences[i] for i in which], nodes.tolist(), [chosen[i] for i in which])
        for i, token in zip(which, tokens.tolist(), strict=True):
            chosen[i].append(token)
        return tokens

    return walk_batch(trees, draw)


def _choose(logits: torch.Tensor, sequences: list[SequenceStep], nodes: list[int], paths: list[list[int]]) -> IntArray:
    """[n] int64: the token after each node, which ends that path, from the model's logits [n, vocab], which are
    changed.
    """
    positions = [sequence.output_position + len(path) for sequence, path in zip(sequences, paths, strict=True)]
    ruled = [
        RuledRow(row, sequence.logit_rules, position, path)
        for row, (sequence, position, path) in enumerate(zip(sequences, positions, paths, strict=True))
        if sequence.logit_rules is not None
    ]
    apply_rules(logits, ruled)
    masks = [(row, sequence.token_masks) for row, sequence in enumerate(sequences)]
    apply_masks(logits, [(row, mask[nodes[row]]) for row, mask in masks if mask is not None])
    greedy = np.array([sequence.sampling.greedy for sequence in sequences], dtype=np.bool_)
    tokens = np.empty(len(sequences), dtype=np.int64)
    if greedy.any():
        rows = np.flatnonzero(greedy)
        tokens[rows] = logits[on_device(logits.device, rows)].argmax(-1).cpu().numpy()
    if not greedy.all():
        rows = np.flatnonzero(~greedy)
        asked = [sequences[row].sampling for row in rows]
        keys = noise_keys([one.seed for one in asked], np.array([positions[row] for row in rows], dtype=np.int64))
        how = SamplingRows.of(asked, on_device(logits.device, keys))
        tokens[rows] = sample(logits[on_device(logits.device, rows)] if greedy.any() else logits, how).cpu().numpy()
    return tokens


def _is_plain(sequence: SequenceStep) -> bool:
    """Whether its tokens are simply the likeliest ones of the model's own logits."""
    return sequence.sampling.greedy and sequence.logit_rules is None and sequence.token_masks is None


def on_device(device: torch.device, array: IntArray) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
