"""What the logits of a step come to where every rank has its share of the vocabulary.

No rank ever holds all logits of a step. Each reduces its own to what the others need: the best token of every row, the
likeliest few and the mass they are part of. Rank 0 alone puts them together, and verifies. Whole rows go there only
where a choice needs more than the best token (limits, rules, log-probabilities).

Exact: the best of the ranks' best is the best, the lowest id of equals; and the noise of a draw is a function of
(seed, position, token), so that a draw without limits is the best of the noisy scores. What a grammar leaves out, each
rank leaves out of its share before it looks for the best.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from goose.tree import BoolArray, IntArray
from goose_ray.engine.step import HarvestRows, SequenceStep, StepBatch
from goose_ray.runner.harvest import LogitRows
from goose_ray.runner.head import LanguageModelHead
from goose_ray.runner.noise import gumbel, noise_keys, rows_at_once
from goose_ray.runner.processing import apply_masks
from goose_ray.runner.prompt_scoring import PromptScoring
from goose_ray.runner.verification import ROWS_PER_CHUNK, RowScores, RowUses, on_device

__all__ = ["RankGroup", "score_shard", "whole_rows"]


class RankGroup(Protocol):
    """The ranks of a gang, from the place of one of them."""

    rank: int
    size: int

    def gather(self, part: torch.Tensor) -> torch.Tensor | None:
        """`part`, of the same shape and dtype on all ranks -> [size, ...] on rank 0, None elsewhere. All must call."""
        ...


def score_shard(batch: StepBatch, hidden: torch.Tensor, head: LanguageModelHead, ranks: RankGroup) -> RowScores | None:
    """`goose_ray.runner.verification.score_rows` on all ranks together; None except on rank 0.

    hidden [T, hidden_size] is the same everywhere.
    """
    decided = np.array([_is_best_of_all(step, head.vocab_size) for step in batch.sequences], dtype=np.bool_)
    uses = RowUses.of(batch, decided)
    prompts = PromptScoring(batch)
    uses.needed[prompts.rows] = True
    whole = uses.kept.copy()
    whole[prompts.rows] = True
    draws = _Draws.of(batch, decided, hidden.device)
    masks = _masks_of_rows(batch, decided)
    rows = np.flatnonzero(uses.needed)
    merged: list[_Merged] = []
    kept: list[torch.Tensor] = []
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        logits = head(hidden if len(chunk) == len(hidden) else hidden[on_device(hidden.device, chunk)])
        allowed = _allowed(logits, [masks.get(row) for row in chunk.tolist()] if masks else (), head.first_token)
        merged_part = _reduce(logits, allowed, draws.at(chunk), head, ranks, batch.harvest_k)
        in_full = np.flatnonzero(whole[chunk])
        full = whole_rows(logits[on_device(logits.device, in_full)], head, ranks) if len(in_full) else None
        if merged_part is None:
            continue
        merged.append(merged_part)
        if full is not None:
            prompts.score(chunk[in_full], full)
            kept.append(full[on_device(full.device, np.flatnonzero(uses.kept[chunk[in_full]]))])
    if ranks.rank != 0:
        return None
    decided_ids = np.zeros(batch.num_rows, dtype=np.int64)
    harvest = None
    if merged:
        decided_ids[rows] = torch.cat([part.best_ids for part in merged]).cpu().numpy()
        if batch.harvest_k:
            top_ids = torch.cat([part.top_ids for part in merged]).cpu().numpy()
            harvest = HarvestRows(rows, top_ids, torch.cat([part.top_probs for part in merged]).cpu().numpy())
    return RowScores(
        decided=decided,
        decided_ids=decided_ids,
        kept_logits=torch.cat(kept or [hidden[:0].float()]),
        kept_index=uses.kept_index(),
        harvest=harvest,
        prompt_logprobs=prompts.result(),
    )


def whole_rows(logits: torch.Tensor, head: LanguageModelHead, ranks: RankGroup) -> torch.Tensor | None:
    """logits [n, the share's tokens] -> [n, vocab_size] on rank 0, None elsewhere."""
    padded = torch.nn.functional.pad(logits, (0, head.width - logits.shape[1]))
    parts = ranks.gather(padded.contiguous())
    return None if parts is None else parts.transpose(0, 1).flatten(1)[:, : head.vocab_size].contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class _Draws:
    """The rows whose token is the best of noisy scores, of the whole batch."""

    # [T] bool on the host, and [T] each on the device; unspecified where not drawn
    drawn: BoolArray
    keys: torch.Tensor
    temperature: torch.Tensor

    @classmethod
    def of(cls, batch: StepBatch, decided: BoolArray, device: torch.device) -> "_Draws":
        drawn = np.zeros(batch.num_rows, dtype=np.bool_)
        keys = np.zeros(batch.num_rows, dtype=np.int64)
        temperature = np.ones(batch.num_rows, dtype=np.float32)
        for index in np.flatnonzero(decided).tolist():
            step = batch.sequences[index]
            if step.tree is not None and not step.sampling.greedy:
                rows = slice(step.row_start + step.num_chain - 1, step.row_end)
                drawn[rows] = True
                positions = step.output_position + step.tree.depths
                keys[rows] = noise_keys([step.sampling.seed] * len(positions), positions)
                temperature[rows] = step.sampling.temperature
        return cls(drawn, on_device(device, keys), torch.from_numpy(temperature).to(device))

    def at(self, chunk: IntArray) -> "_Draws":
        rows = on_device(self.keys.device, chunk)
        return _Draws(self.drawn[chunk], self.keys[rows], self.temperature[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """What rank 0 knows of a chunk of n rows."""

    # [n] int64
    best_ids: torch.Tensor
    # [n, k] int64, [n, k] float32
    top_ids: torch.Tensor
    top_probs: torch.Tensor


def _masks_of_rows(batch: StepBatch, decided: BoolArray) -> dict[int, NDArray[np.int32]]:
    """The masks [ceil(vocab / 32)] of tree rows, by row, of sequences that are decided here."""
    masks: dict[int, NDArray[np.int32]] = {}
    for index in np.flatnonzero(decided).tolist():
        step = batch.sequences[index]
        if step.token_masks is not None:
            masks.update(enumerate(step.token_masks, step.row_start + step.num_chain - 1))
    return masks


def _allowed(logits: torch.Tensor, masks: Sequence[NDArray[np.int32] | None], first_token: int) -> torch.Tensor:
    """logits [n, the share's tokens], or a copy without what the rows' masks leave out; no masks: nothing."""
    masked = [(row, mask) for row, mask in enumerate(masks) if mask is not None]
    if not masked:
        return logits
    allowed = logits.clone()
    apply_masks(allowed, masked, first_token=first_token)
    return allowed


def _reduce(
    logits: torch.Tensor,
    allowed: torch.Tensor,
    draws: _Draws,
    head: LanguageModelHead,
    ranks: RankGroup,
    harvest_k: int,
) -> _Merged | None:
    """One message a rank: [n, 2 + 1 + 2k] words, floats and ids side by side. The best are of `allowed`."""
    rows = LogitRows(logits)
    likeliest = (rows if allowed is logits else LogitRows(allowed)).likeliest()
    best, best_ids = _best(allowed, likeliest, draws, head.first_token)
    words = [best[:, None].view(torch.int32), best_ids[:, None].int()]
    k = 0
    if harvest_k:
        # A share may be narrower than what is harvested of all of them.
        k = min(harvest_k, head.vocab_size - (ranks.size - 1) * head.width)
        top_ids, _ = rows.successors(k)
        log_mass = logits.logsumexp(-1, keepdim=True)
        words += [log_mass.view(torch.int32), logits.gather(1, top_ids).view(torch.int32)]
        words.append((top_ids + head.first_token).int())
    parts = ranks.gather(torch.cat(words, dim=1))
    if parts is None:
        return None
    # Of equal scores the lowest rank's, whose ids are lower.
    winner = parts[:, :, 0].contiguous().view(torch.float32).argmax(0, keepdim=True)
    chosen = parts[:, :, 1].gather(0, winner)[0].long()
    if not harvest_k:
        return _Merged(chosen, chosen[:, None], best[:, None])
    total = parts[:, :, 2].contiguous().view(torch.float32).logsumexp(0)
    values = parts[:, :, 3 : 3 + k].transpose(0, 1).flatten(1).view(torch.float32)
    ids = parts[:, :, 3 + k :].transpose(0, 1).flatten(1)
    top = values.topk(min(harvest_k, values.shape[1]))
    return _Merged(chosen, ids.gather(1, top.indices).long(), (top.values - total[:, None]).exp())


def _best(
    logits: torch.Tensor, ids: torch.Tensor, draws: _Draws, first_token: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[n] float32 and [n] int64: the best score of each row in this share, and its token (the lowest of equals).

    `ids` [n] are those of the largest logits, and are changed.
    """
    scores = logits.gather(1, ids[:, None])[:, 0]
    rows = np.flatnonzero(draws.drawn)
    tokens = torch.arange(first_token, first_token + logits.shape[1], device=logits.device)[None]
    at_once = rows_at_once(logits.shape[1])
    for start in range(0, len(rows), at_once):
        part = on_device(logits.device, rows[start : start + at_once])
        noisy = gumbel(draws.keys[part, None], tokens).add_(logits[part] / draws.temperature[part, None])
        ids[part] = noisy.argmax(-1)
        scores[part] = noisy.gather(1, ids[part, None])[:, 0]
    return scores, ids + first_token


def _is_best_of_all(step: SequenceStep, vocab_size: int) -> bool:
    """Whether its tokens are those of the best score, noisy or not, of all that a mask lets through."""
    sampling = step.sampling
    limited = 0 < sampling.top_k < vocab_size or sampling.top_p < 1.0 or sampling.min_p > 0.0
    return step.logit_rules is None and (sampling.greedy or not limited)
