"""One draw from the target's processed distribution, by Gumbel-max.

Processing is that of transformers and vLLM: temperature, then top_k (ties with the k-th kept), then top_p (a token
stays while the mass of the likelier ones is below top_p). The draw is the token with the largest scaled logit +
Gumbel noise, the noise being a function of (seed, output position, token).

Why not the inverse of the cumulated distribution, with one uniform a draw? Rounding in a forward of another shape
moves logits by about 1e-6. Gumbel-max changes its token only if the two best are that close: with probability at most
2 d, d being the total variation between the two distributions, and at least d is unavoidable. The inverse changes it
if the uniform lies near any of the boundaries it has in between, whose errors add up: tens of times more often over a
wide support in vocabulary order, and in sorted order a mere swap of ranks moves boundaries as well.
"""

from dataclasses import dataclass

import torch

from goose_ray.runner.noise import gumbel

__all__ = ["SamplingRows", "sample", "survivors"]

# Candidates looked at before the whole vocabulary is sorted.
_FIRST_CANDIDATES = 256


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRows:
    """How each of n rows is sampled. `keys` are `noise_keys`."""

    # [n] float32, above 0
    temperature: torch.Tensor
    # [n] int64; 0 or less: no limit
    top_k: torch.Tensor
    # [n] float64, 1: no limit
    top_p: torch.Tensor
    # [n] int64
    keys: torch.Tensor

    def select(self, rows: torch.Tensor) -> "SamplingRows":
        return SamplingRows(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.keys[rows])


def sample(logits: torch.Tensor, how: SamplingRows) -> torch.Tensor:
    """logits [n, vocab] float32 -> [n] int64 tokens"""
    scores = logits / how.temperature[:, None]
    vocab_size = logits.shape[1]
    limited = ((how.top_k > 0) & (how.top_k < vocab_size)) | (how.top_p < 1.0)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    free_rows = torch.nonzero(~limited)[:, 0]
    if len(free_rows):
        every_token = torch.arange(vocab_size, device=logits.device)[None]
        tokens[free_rows] = (scores[free_rows] + gumbel(how.keys[free_rows, None], every_token)).argmax(-1)
    rows = torch.nonzero(limited)[:, 0]
    num_candidates = _FIRST_CANDIDATES
    while len(rows):
        num_candidates = min(num_candidates, vocab_size)
        part = how.select(rows)
        values, ids = scores[rows].topk(num_candidates)
        kept, complete = survivors(values, scores[rows].logsumexp(-1), part.top_k, part.top_p)
        if num_candidates == vocab_size:
            complete = torch.ones_like(complete)
        noisy = (values + gumbel(part.keys[:, None], ids)).masked_fill_(~kept, -torch.inf)
        drawn = ids.gather(1, noisy.argmax(-1, keepdim=True))[:, 0]
        tokens[rows[complete]] = drawn[complete]
        rows = rows[~complete]
        num_candidates *= 16
    return tokens


def survivors(
    values: torch.Tensor, log_mass: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the c likeliest tokens survive top_k and top_p.

    values [n, c] float32 are their scores, descending; log_mass [n] is the logarithm of the whole vocabulary's mass.
    Returns kept [n, c] bool and complete [n] bool: whether every survivor is certainly among them.
    """
    num_candidates = values.shape[1]
    has_k = top_k > 0
    kth = values.gather(1, (top_k.clamp(1, num_candidates) - 1)[:, None])
    in_k = (values >= kth) | ~has_k[:, None]
    # Beyond the candidates only ties with the k-th could follow.
    k_inside = has_k & (top_k <= num_candidates) & (values[:, -1] < kth[:, 0])
    within_k = values.double().masked_fill(~in_k, -torch.inf)
    log_total = torch.where(k_inside, within_k.logsumexp(-1), log_mass.double())
    mass = (within_k - log_total[:, None]).exp()
    mass_before = mass.cumsum(-1) - mass
    # A limit by value, so that ties at the edge stay together whatever order they came in.
    last = ((mass_before < top_p[:, None]) & in_k).sum(-1).clamp(min=1) - 1
    edge = values.gather(1, last[:, None])
    unlimited_p = top_p >= 1.0
    kept = in_k & ((values >= edge) | unlimited_p[:, None])
    p_inside = ~unlimited_p & (mass.sum(-1) >= top_p) & (values[:, -1] < edge[:, 0])
    # A top_k that reaches past the candidates must be resolved before top_p, which counts the survivors' mass alone.
    k_resolved = k_inside | ~has_k
    return kept, k_resolved & (k_inside | p_inside)
