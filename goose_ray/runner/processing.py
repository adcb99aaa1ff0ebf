"""Logit rules and token masks applied to logits: bans, biases, penalties, at any number of rows at once.

The order is vLLM's: allowed tokens, bad words, bans, biases, then the repetition, frequency and presence penalty. All
work is on the tokens that the rules name; where nothing is named, nothing is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from goose.tree import IntArray
from goose_ray.engine.logit_rules import LogitRules

__all__ = ["RuledRow", "apply_masks", "apply_rules", "unpacked"]


@dataclass(frozen=True, slots=True, eq=False)
class RuledRow:
    """A row of logits, and what stands before the token to be chosen from it."""

    row: int
    rules: LogitRules
    # output position of that token
    position: int
    # draft tokens between the anchor (which is committed and counted) and that token
    path_ids: Sequence[int]


def apply_masks(logits: torch.Tensor, masked: Sequence[tuple[int, NDArray[np.int32]]], *, first_token: int = 0) -> None:
    """Changes logits [n, width] of the tokens from `first_token` on, in place: of each row named, those of tokens that
    its mask leaves out. No row twice.

    A mask [ceil(vocab / 32)] int32 has bit t % 32 of word t // 32 set for the tokens t that it lets through.
    """
    if not masked:
        return
    rows = [row for row, _ in masked]
    first_word, first = divmod(first_token, 32)
    last = first + logits.shape[1]
    words = slice(first_word, first_word - (-last // 32))
    packed = ~np.stack([mask[words] for _, mask in masked])
    if logits.device.type == "cpu":
        # A bit becomes a byte of 0 or 1, which is a bool.
        bits = np.unpackbits(packed.view(np.uint8), axis=1, count=last, bitorder="little")
        left_out = torch.from_numpy(bits[:, first:].view(np.bool_))
    else:
        # A bit a token crosses to the device, not a byte.
        left_out = unpacked(torch.from_numpy(packed).to(logits.device))[:, first:last]
    if rows == list(range(len(logits))):
        logits.masked_fill_(left_out, -torch.inf)
        return
    for row, of_row in zip(rows, left_out, strict=True):
        logits[row].masked_fill_(of_row, -torch.inf)


def unpacked(words: torch.Tensor) -> torch.Tensor:
    """[n, w] int32 -> [n, 32 w] bool: the bits of each word, lowest first."""
    return (words[:, :, None] >> torch.arange(32, device=words.device)).bitwise_and_(1).flatten(1) != 0


def apply_rules(logits: torch.Tensor, ruled: Sequence[RuledRow]) -> None:
    """Changes logits [n, vocab] float32 in place. No row twice."""
    for one in ruled:
        if len(one.rules.allowed_ids):
            _keep(logits[one.row], one.rules.allowed_ids)
    _ban(logits, ruled)
    _add_biases(logits, ruled)
    _penalise(logits, [one for one in ruled if one.rules.sampling.has_penalties])


def _keep(row: torch.Tensor, allowed_ids: IntArray) -> None:
    """Of a row [vocab], a view, the tokens named alone."""
    ids = torch.from_numpy(allowed_ids).to(row.device)
    kept = row[ids]
    row.fill_(-torch.inf)
    row[ids] = kept


def _ban(logits: torch.Tensor, ruled: Sequence[RuledRow]) -> None:
    banned = [(one.row, one.rules.banned_ids) for one in ruled if one.rules.bans_at(one.position)]
    banned += [(one.row, one.rules.completing(one.path_ids)) for one in ruled if one.rules.sampling.bad_word_ids]
    if banned:
        logits[_places(banned, logits.device)] = -torch.inf


def _add_biases(logits: torch.Tensor, ruled: Sequence[RuledRow]) -> None:
    biased = [one for one in ruled if len(one.rules.bias_ids)]
    if biased:
        biases = np.concatenate([one.rules.biases for one in biased])
        places = _places([(one.row, one.rules.bias_ids) for one in biased], logits.device)
        logits[places] += torch.from_numpy(biases).to(logits.device)


def _penalise(logits: torch.Tensor, penalised: Sequence[RuledRow]) -> None:
    if not penalised:
        return
    counted = [one.rules.counted_with(one.path_ids) for one in penalised]
    places = _places([(one.row, ids) for one, (ids, _) in zip(penalised, counted, strict=True)], logits.device)
    counts = torch.from_numpy(np.concatenate([counts for _, counts in counted])).to(logits.device)
    # [number of counted tokens, 3]: the penalties of the row that each is in
    penalties = torch.from_numpy(
        np.repeat(
            np.asarray(
                [
                    (s.repetition_penalty, s.frequency_penalty, s.presence_penalty)
                    for s in (one.rules.sampling for one in penalised)
                ],
                dtype=np.float32,
            ),
            [len(ids) for ids, _ in counted],
            axis=0,
        )
    ).to(logits.device)
    repetition, frequency, presence = penalties.unbind(1)
    values = logits[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[places] = values - frequency * counts - presence * (counts > 0)


def _places(parts: Sequence[tuple[int, IntArray]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of every token named, for indexing."""
    rows = np.repeat([row for row, _ in parts], [len(ids) for _, ids in parts])
    columns = np.concatenate([ids for _, ids in parts])
    return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
