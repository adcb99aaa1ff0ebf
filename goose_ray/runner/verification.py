"""Verification next to the logits: scores of the rows that are needed, then the walk down every tree.

Tree rows always need logits, chain rows only where their successors are harvested. They are computed in chunks, and
of a chunk only what is asked for is kept, so that memory does not grow with prompt x vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from goose.tree import BoolArray, IntArray
from goose.verify import VerifiedPath, walk_batch
from goose_ray.engine.logprobs import PathLogprobs
from goose_ray.engine.step import HarvestRows, SequenceStep, StepBatch
from goose_ray.runner.harvest import top_successors
from goose_ray.runner.noise import noise_keys
from goose_ray.runner.processing import RuledRow, apply_rules
from goose_ray.runner.prompt_scoring import PromptScoring
from goose_ray.runner.sampler import SamplingRows, sample

__all__ = ["RowScores", "score_rows", "verify_trees"]

# Logits held at once: 128 rows of a 150k vocabulary are 77 MB.
_ROWS_PER_CHUNK = 128


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """What the logits of a step came to. `T` is the number of rows of the batch."""

    # [T] int64: the likeliest token (the lowest id of equals) at tree rows of plain greedy sequences, else unspecified
    greedy_ids: IntArray
    # [num_kept, vocab] float32: the model's logits at the tree rows where they are needed for more
    kept_logits: torch.Tensor
    # [T] int64: row of `kept_logits`, -1 for other rows
    kept_index: IntArray
    harvest: HarvestRows | None
    # of `SequenceStep.scored_ids`
    prompt_logprobs: tuple[PathLogprobs | None, ...]


def score_rows(batch: StepBatch, hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]) -> RowScores:
    """hidden [T, hidden_size]; `head` maps [n, hidden_size] to [n, vocab] float32 logits."""
    needed, greedy, kept = _rows_by_use(batch)
    prompts = PromptScoring(batch)
    needed[prompts.rows] = True
    kept_rows = np.flatnonzero(kept)
    kept_index = np.full(batch.num_rows, -1, dtype=np.int64)
    kept_index[kept_rows] = np.arange(len(kept_rows))
    greedy_ids = np.zeros(batch.num_rows, dtype=np.int64)
    rows = np.flatnonzero(needed)
    kept_parts: list[torch.Tensor] = []
    top_ids: list[torch.Tensor] = []
    top_probs: list[torch.Tensor] = []
    for start in range(0, len(rows), _ROWS_PER_CHUNK):
        chunk = rows[start : start + _ROWS_PER_CHUNK]
        logits = head(hidden if len(chunk) == len(hidden) else hidden[_on(hidden.device, chunk)])
        if greedy[chunk].any():
            greedy_ids[chunk] = logits.argmax(-1).cpu().numpy()
        if kept[chunk].all():
            kept_parts.append(logits)
        elif kept[chunk].any():
            kept_parts.append(logits[_on(logits.device, np.flatnonzero(kept[chunk]))])
        prompts.score(chunk, logits)
        if batch.harvest_k:
            ids, probs = top_successors(logits, batch.harvest_k)
            top_ids.append(ids)
            top_probs.append(probs)
    return RowScores(
        greedy_ids=greedy_ids,
        kept_logits=kept_parts[0] if len(kept_parts) == 1 else torch.cat(kept_parts or [hidden[:0]]),
        kept_index=kept_index,
        harvest=HarvestRows(rows, torch.cat(top_ids).cpu().numpy(), torch.cat(top_probs).cpu().numpy())
        if top_ids
        else None,
        prompt_logprobs=prompts.result(),
    )


def verify_trees(batch: StepBatch, scores: RowScores) -> tuple[VerifiedPath | None, ...]:
    """One entry a sequence, None where it has no tree. Tokens are chosen at reached nodes only."""
    sequences = [sequence for sequence in batch.sequences if sequence.tree is not None]
    trees = [sequence.tree for sequence in sequences if sequence.tree is not None]
    anchors = np.array([sequence.row_start + sequence.num_chain - 1 for sequence in sequences], dtype=np.int64)
    is_plain = np.array([_is_plain(sequence) for sequence in sequences], dtype=np.bool_)
    # What was chosen so far: whoever is still walking has had all of it accepted.
    chosen: list[list[int]] = [[] for _ in sequences]

    def draw(walking: IntArray, nodes: IntArray) -> IntArray:
        rows = anchors[walking] + nodes
        tokens: IntArray = scores.greedy_ids[rows]
        others = np.flatnonzero(~is_plain[walking])
        if len(others):
            which = walking[others].tolist()
            # A copy: what the rules change in it is not the model's any more.
            logits = scores.kept_logits[_on(scores.kept_logits.device, scores.kept_index[rows[others]])]
            tokens[others] = _choose(logits, [sequences[i] for i in which], [chosen[i] for i in which])
            for i, token in zip(which, tokens[others].tolist(), strict=True):
                chosen[i].append(token)
        return tokens

    walked = iter(walk_batch(trees, draw))
    return tuple(None if sequence.tree is None else next(walked) for sequence in batch.sequences)


def _choose(logits: torch.Tensor, sequences: list[SequenceStep], paths: list[list[int]]) -> IntArray:
    """[n] int64: the token after each path, from the model's logits [n, vocab], which are changed."""
    positions = [sequence.output_position + len(path) for sequence, path in zip(sequences, paths, strict=True)]
    ruled = [
        RuledRow(row, sequence.logit_rules, position, path)
        for row, (sequence, position, path) in enumerate(zip(sequences, positions, paths, strict=True))
        if sequence.logit_rules is not None
    ]
    apply_rules(logits, ruled)
    greedy = np.array([sequence.sampling.greedy for sequence in sequences], dtype=np.bool_)
    tokens = np.empty(len(sequences), dtype=np.int64)
    if greedy.any():
        rows = np.flatnonzero(greedy)
        tokens[rows] = logits[_on(logits.device, rows)].argmax(-1).cpu().numpy()
    if not greedy.all():
        rows = np.flatnonzero(~greedy)
        asked = [sequences[row].sampling for row in rows]
        keys = noise_keys([one.seed for one in asked], np.array([positions[row] for row in rows], dtype=np.int64))
        how = SamplingRows.of(asked, _on(logits.device, keys))
        tokens[rows] = sample(logits[_on(logits.device, rows)] if greedy.any() else logits, how).cpu().numpy()
    return tokens


def _is_plain(sequence: SequenceStep) -> bool:
    """Whether its tokens are simply the likeliest ones of the model's own logits."""
    return sequence.sampling.greedy and sequence.logit_rules is None


def _rows_by_use(batch: StepBatch) -> tuple[BoolArray, BoolArray, BoolArray]:
    """[T] bool each: rows that need logits, tree rows of plain greedy sequences, tree rows whose logits are kept.

    Logits are kept for what is chosen otherwise, and for log-probabilities.
    """
    needed = np.zeros(batch.num_rows, dtype=np.bool_)
    greedy = np.zeros(batch.num_rows, dtype=np.bool_)
    kept = np.zeros(batch.num_rows, dtype=np.bool_)
    for sequence in batch.sequences:
        anchor = sequence.row_start + sequence.num_chain - 1
        if sequence.tree is not None:
            needed[anchor : sequence.row_end] = True
            plain = _is_plain(sequence)
            greedy[anchor : sequence.row_end] = plain
            kept[anchor : sequence.row_end] = not plain or sequence.sampling.logprobs is not None
        if sequence.harvest_chain and batch.harvest_k:
            needed[sequence.row_start : anchor + 1] = True
    return needed, greedy, kept


def _on(device: torch.device, array: IntArray) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
