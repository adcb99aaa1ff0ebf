"""Log-probabilities along verified paths, for the sequences that ask for them."""

from collections.abc import Sequence

import numpy as np
import torch

from goose.tree import FloatArray, IntArray
from goose.verify import VerifiedPath
from goose_ray.engine.logprobs import PathLogprobs
from goose_ray.engine.step import SequenceStep

__all__ = ["path_logprobs", "token_logprobs"]


def token_logprobs(logits: torch.Tensor, tokens: IntArray, num_top: int) -> tuple[FloatArray, IntArray, FloatArray]:
    """logits [n, vocab], tokens [n] -> their log-probabilities [n], and ids and log-probabilities [n, num_top] of the
    likeliest; no more than there are tokens.
    """
    log_mass = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, torch.from_numpy(tokens).to(logits.device)[:, None]) - log_mass
    best = logits.topk(min(num_top, logits.shape[1]))
    return chosen[:, 0].cpu().numpy(), best.indices.cpu().numpy(), (best.values - log_mass).cpu().numpy()


def path_logprobs(
    logits: torch.Tensor,
    index: IntArray,
    sequences: Sequence[SequenceStep],
    paths: Sequence[VerifiedPath | None],
) -> tuple[PathLogprobs | None, ...]:
    """One entry a sequence, None without a path or where none are asked for; () if all are None.

    logits [num_kept, vocab] float32 are the model's own; index [T] int64 is the row in them of each row of the batch.
    """
    asked = [
        (place, path, sequence.sampling.logprobs)
        for place, (sequence, path) in enumerate(zip(sequences, paths, strict=True))
        if path is not None and sequence.sampling.logprobs is not None
    ]
    if not asked:
        return ()
    rows = [
        sequences[place].row_start + sequences[place].num_chain - 1 + np.concatenate(([0], path.accepted_nodes))
        for place, path, _ in asked
    ]
    tokens = np.concatenate([path.token_ids for _, path, _ in asked])
    wanted = logits[torch.from_numpy(index[np.concatenate(rows)]).to(logits.device)]
    chosen, top_ids, top = token_logprobs(wanted, tokens, max(count for _, _, count in asked))
    found: list[PathLogprobs | None] = [None] * len(sequences)
    start = 0
    for place, path, count in asked:
        part = slice(start, start + len(path.token_ids))
        found[place] = PathLogprobs(path.token_ids, chosen[part], top_ids[part, :count], top[part, :count])
        start = part.stop
    return tuple(found)
