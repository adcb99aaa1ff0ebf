"""Texts of the target that drafting may start from, with what the target found likely at every place.

Replies to calibration prompts, say: to a replica that has served nothing yet they are what its own past texts are to
an older one. Knows nothing of how they are remembered. Holds the words of prompts and replies.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.texts import MAX_TOKEN, NUM_SUCCESSORS
from goose.errors import InvalidSnapshotError
from goose.tree import FloatArray, IntArray

__all__ = ["ARRAY_NAMES", "KnownText", "KnownTexts"]

ARRAY_NAMES = ("text_tokens", "text_lengths", "prompt_lengths", "row_ids", "row_probs")


@dataclass(frozen=True, slots=True, eq=False)
class KnownText:
    """A prompt and the target's reply."""

    # [num_tokens] int64
    token_ids: IntArray
    num_prompt: int
    # [num_tokens, NUM_SUCCESSORS] int64 and float32: the likeliest tokens after each; probability 0: none
    top_ids: IntArray
    top_probs: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class KnownTexts:
    """Texts behind one another, in the order in which they are forgotten."""

    # [num_tokens] int32
    token_ids: NDArray[np.int32]
    # [num_texts] int64, prompts included
    lengths: IntArray
    # [num_texts] int64
    prompt_lengths: IntArray
    # [num_tokens, NUM_SUCCESSORS]
    top_ids: NDArray[np.int32]
    top_probs: NDArray[np.float16]

    @classmethod
    def none(cls) -> "KnownTexts":
        nothing = np.zeros(0, dtype=np.int64)
        rows = np.zeros((0, NUM_SUCCESSORS))
        return cls(nothing.astype(np.int32), nothing, nothing, rows.astype(np.int32), rows.astype(np.float16))

    def joined(self, newer: "KnownTexts") -> "KnownTexts":
        """These, then the newer ones."""
        return KnownTexts(
            np.concatenate([self.token_ids, newer.token_ids]),
            np.concatenate([self.lengths, newer.lengths]),
            np.concatenate([self.prompt_lengths, newer.prompt_lengths]),
            np.concatenate([self.top_ids, newer.top_ids]),
            np.concatenate([self.top_probs, newer.top_probs]),
        )

    @property
    def max_token_id(self) -> int:
        """The largest token in texts and rows, -1 without texts: what the target's vocabulary must hold."""
        return max(int(self.token_ids.max(initial=-1)), int(self.top_ids.max(initial=-1)))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[KnownText]:
        ends = np.cumsum(self.lengths)
        for end, length, num_prompt in zip(
            ends.tolist(), self.lengths.tolist(), self.prompt_lengths.tolist(), strict=True
        ):
            own = slice(end - length, end)
            yield KnownText(
                self.token_ids[own].astype(np.int64),
                num_prompt,
                self.top_ids[own].astype(np.int64),
                self.top_probs[own].astype(np.float32),
            )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By ARRAY_NAMES, for a file."""
        return dict(
            zip(
                ARRAY_NAMES,
                (self.token_ids, self.lengths, self.prompt_lengths, self.top_ids, self.top_probs),
                strict=True,
            )
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], path: Path) -> "KnownTexts":
        """Raises InvalidSnapshotError naming the path and the array that does not fit the others."""
        tokens, lengths, prompts, ids, probs = (arrays[name] for name in ARRAY_NAMES)
        for name, array, kind, shape in (
            ("text_tokens", tokens, "iu", (len(tokens),)),
            ("text_lengths", lengths, "iu", (len(lengths),)),
            ("prompt_lengths", prompts, "iu", (len(lengths),)),
            ("row_ids", ids, "iu", (len(tokens), NUM_SUCCESSORS)),
            ("row_probs", probs, "f", (len(tokens), NUM_SUCCESSORS)),
        ):
            if array.shape != shape or array.dtype.kind not in kind:
                raise InvalidSnapshotError(f"{path}: {name} must be of shape {shape}, not {array.dtype} {array.shape}")
        if lengths.sum() != len(tokens) or (prompts < 1).any() or (prompts > lengths).any():
            raise InvalidSnapshotError(f"{path}: text_lengths and prompt_lengths do not divide text_tokens into texts")
        for name, array in (("text_tokens", tokens), ("row_ids", ids)):
            if array.min(initial=0) < 0 or array.max(initial=0) > MAX_TOKEN:
                raise InvalidSnapshotError(f"{path}: {name} must be token ids from 0 to {MAX_TOKEN}")
        if not (np.isfinite(probs).all() and probs.min(initial=0) >= 0 and probs.max(initial=0) <= 1):
            raise InvalidSnapshotError(f"{path}: row_probs must be probabilities")
        return cls(
            tokens.astype(np.int32),
            lengths.astype(np.int64),
            prompts.astype(np.int64),
            ids.astype(np.int32),
            probs.astype(np.float16),
        )
