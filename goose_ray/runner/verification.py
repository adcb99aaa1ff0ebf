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
from goose_ray.engine.step import HarvestRows, StepBatch
from goose_ray.runner.harvest import top_successors
from goose_ray.runner.noise import noise_keys
from goose_ray.runner.sampler import SamplingRows, sample

__all__ = ["RowScores", "score_rows", "verify_trees"]

# Logits held at once: 128 rows of a 150k vocabulary are 77 MB.
_ROWS_PER_CHUNK = 128


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """What the logits of a step came to. `T` is the number of rows of the batch."""

    # [T] int64: the likeliest token (the lowest id of equals) at tree rows of greedy sequences, else unspecified
    greedy_ids: IntArray
    # [num_sampled, vocab] float32: logits at the tree rows of sampled sequences
    sampled_logits: torch.Tensor
    # [T] int64: row of `sampled_logits`, -1 for other rows
    sampled_index: IntArray
    harvest: HarvestRows | None


def score_rows(batch: StepBatch, hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor]) -> RowScores:
    """hidden [T, hidden_size]; `head` maps [n, hidden_size] to [n, vocab] float32 logits."""
    needed, greedy, sampled = _rows_by_use(batch)
    sampled_rows = np.flatnonzero(sampled)
    sampled_index = np.full(batch.num_rows, -1, dtype=np.int64)
    sampled_index[sampled_rows] = np.arange(len(sampled_rows))
    greedy_ids = np.zeros(batch.num_rows, dtype=np.int64)
    rows = np.flatnonzero(needed)
    sampled_parts: list[torch.Tensor] = []
    top_ids: list[torch.Tensor] = []
    top_probs: list[torch.Tensor] = []
    for start in range(0, len(rows), _ROWS_PER_CHUNK):
        chunk = rows[start : start + _ROWS_PER_CHUNK]
        logits = head(hidden if len(chunk) == len(hidden) else hidden[_on(hidden.device, chunk)])
        if greedy[chunk].any():
            greedy_ids[chunk] = logits.argmax(-1).cpu().numpy()
        if sampled[chunk].all():
            sampled_parts.append(logits)
        elif sampled[chunk].any():
            sampled_parts.append(logits[_on(logits.device, np.flatnonzero(sampled[chunk]))])
        if batch.harvest_k:
            ids, probs = top_successors(logits, batch.harvest_k)
            top_ids.append(ids)
            top_probs.append(probs)
    return RowScores(
        greedy_ids=greedy_ids,
        sampled_logits=sampled_parts[0] if len(sampled_parts) == 1 else torch.cat(sampled_parts or [hidden[:0]]),
        sampled_index=sampled_index,
        harvest=HarvestRows(rows, torch.cat(top_ids).cpu().numpy(), torch.cat(top_probs).cpu().numpy())
        if top_ids
        else None,
    )


def verify_trees(batch: StepBatch, scores: RowScores) -> tuple[VerifiedPath | None, ...]:
    """One entry a sequence, None where it has no tree. Sampled tokens are drawn at reached nodes only."""
    sequences = [sequence for sequence in batch.sequences if sequence.tree is not None]
    trees = [sequence.tree for sequence in sequences if sequence.tree is not None]
    anchors = np.array([sequence.row_start + sequence.num_chain - 1 for sequence in sequences], dtype=np.int64)
    first_positions = np.array([sequence.output_position for sequence in sequences], dtype=np.int64)

    def draw(walking: IntArray, nodes: IntArray) -> IntArray:
        rows = anchors[walking] + nodes
        tokens: IntArray = scores.greedy_ids[rows]
        by_chance = np.flatnonzero(scores.sampled_index[rows] >= 0)
        if len(by_chance):
            depths = np.array([trees[walking[i]].depths[nodes[i]] for i in by_chance], dtype=np.int64)
            asked = [sequences[walking[i]].sampling for i in by_chance]
            device = scores.sampled_logits.device
            keys = noise_keys([one.seed for one in asked], first_positions[walking[by_chance]] + depths)
            how = SamplingRows(
                temperature=torch.tensor([one.temperature for one in asked], dtype=torch.float32, device=device),
                top_k=torch.tensor([one.top_k for one in asked], device=device),
                top_p=torch.tensor([one.top_p for one in asked], dtype=torch.float64, device=device),
                keys=_on(device, keys),
            )
            logits = scores.sampled_logits[_on(device, scores.sampled_index[rows[by_chance]])]
            tokens[by_chance] = sample(logits, how).cpu().numpy()
        return tokens

    walked = iter(walk_batch(trees, draw))
    return tuple(None if sequence.tree is None else next(walked) for sequence in batch.sequences)


def _rows_by_use(batch: StepBatch) -> tuple[BoolArray, BoolArray, BoolArray]:
    """[T] bool each: rows that need logits, tree rows of greedy sequences, tree rows of sampled ones."""
    needed = np.zeros(batch.num_rows, dtype=np.bool_)
    greedy = np.zeros(batch.num_rows, dtype=np.bool_)
    sampled = np.zeros(batch.num_rows, dtype=np.bool_)
    for sequence in batch.sequences:
        anchor = sequence.row_start + sequence.num_chain - 1
        if sequence.tree is not None:
            needed[anchor : sequence.row_end] = True
            (greedy if sequence.sampling.greedy else sampled)[anchor : sequence.row_end] = True
        if sequence.harvest_chain and batch.harvest_k:
            needed[sequence.row_start : anchor + 1] = True
    return needed, greedy, sampled


def _on(device: torch.device, array: IntArray) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
