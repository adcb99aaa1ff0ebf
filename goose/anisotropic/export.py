"""Finished texts taken out of a drafter's memory again, as `KnownTexts` that another drafter can remember.

What was kept of each: the output, up to 96 tokens of the prompt before it, and the target's rows, whose probabilities
were stored as buckets; each comes out as a number of its bucket, so that what remembers it files what was filed here.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.texts import NUM_SUCCESSORS, ROW_MARKS, TEXT_SCOPE, Texts

__all__ = ["exported"]

# A number of each probability bucket (`goose.anisotropic.features.probability_bucket`) that half precision keeps in it;
# buckets 0 and 1 stand for no probability.
_OF_BUCKET = np.array(
    [0, 0, 0.002, 0.006, 0.018, 0.045, 0.1, 0.2, 0.36, 0.55, 0.74, 0.88, 0.96, 0.987, 0.996, 0.9988, 1.0], np.float16
)


def exported(texts: Texts, runs: Iterable[tuple[int, int]], max_tokens: int) -> KnownTexts:
    """The runs (first position, tokens), newest first, as many as `max_tokens` hold; the newest come last."""
    kept: list[tuple[int, int]] = []
    for start, size in runs:
        if size > max_tokens:
            break
        max_tokens -= size
        kept.append((start, size))
    if not kept:
        return KnownTexts.none()
    kept.reverse()
    places = np.concatenate([np.arange(start, start + size) for start, size in kept])
    packed = texts.rows[places]
    buckets = packed >> 5 & 31
    return KnownTexts(
        token_ids=texts.token_ids[places].copy(),
        lengths=np.array([size for _, size in kept], dtype=np.int64),
        prompt_lengths=np.array([_num_prompt(texts, start, size) for start, size in kept], dtype=np.int64),
        top_ids=(packed >> 10).astype(np.int32),
        top_probs=_with_rows(_OF_BUCKET[buckets], texts.records[places, ROW_MARKS]),
    )


def _num_prompt(texts: Texts, start: int, size: int) -> int:
    """The prompt's last token is the first that may be shown to others: what follows it is output."""
    shown = np.flatnonzero(texts.records[start : start + size, TEXT_SCOPE])
    return int(shown[0]) + 1 if len(shown) else size


def _with_rows(probs: NDArray[np.float16], marks: NDArray[np.int32]) -> NDArray[np.float16]:
    """[num_tokens, NUM_SUCCESSORS], without what earlier owners of a position left where no row was filed since."""
    has_row = (marks & 31) > 0
    return np.where(has_row[:, None], probs, np.float16(0)).reshape(len(marks), NUM_SUCCESSORS)
