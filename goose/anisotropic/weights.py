"""The model's weights, and those it starts with.

`prior.npz` was fitted by `goose.anisotropic.fitting` on 210 recorded greedy replies (up to 256 tokens) of the embedded
model to the prompts of `goose_ray/bench/data`, which were written for this project: code, maths, conversations,
translations, summaries, questions with and without passages, tool calls, sessions; chat-templated, code and maths raw
as well. It is where online learning begins, for any model: what the features mean (a long match, an unlikely row entry)
carries over, the fine tuning is redone. None of the public benchmarks that policies are compared on was fitted.

To fit it again: `goose record` the prompts with `--chat`, and those with a raw prompt without it, then
`goose.anisotropic.fitting.fit` on all of them (`goose calibrate --from-nothing --held-out 0`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.features import NUM_WEIGHTS
from goose.errors import InvalidSnapshotError
from goose.npz import read_arrays, write_arrays

__all__ = ["ARRAY_NAMES", "Weights"]

ARRAY_NAMES = ("values", "squares")


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weights by index (`goose.anisotropic.features`) and how far learning has come with each."""

    # [NUM_WEIGHTS] float64
    values: NDArray[np.float64]
    # [NUM_WEIGHTS] float64: sums of squared gradients, which set the size of the next steps (Adagrad)
    squares: NDArray[np.float64]

    @classmethod
    def zero(cls) -> "Weights":
        """All outcomes equally likely."""
        return cls(np.zeros(NUM_WEIGHTS), np.zeros(NUM_WEIGHTS))

    @classmethod
    def prior(cls) -> "Weights":
        return cls.load(Path(str(files("goose.anisotropic") / "prior.npz")))

    @classmethod
    def load(cls, path: Path) -> "Weights":
        """Raises InvalidSnapshotError if the file cannot be read or holds weights of another feature table."""
        return cls.from_arrays(read_arrays(path, ARRAY_NAMES), path)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], path: Path) -> "Weights":
        """Raises InvalidSnapshotError naming the path they were read from."""
        for name in ARRAY_NAMES:
            array = arrays[name]
            if array.shape != (NUM_WEIGHTS,) or array.dtype.kind != "f":
                raise InvalidSnapshotError(
                    f"{path}: {name} must be {NUM_WEIGHTS} weights, not {array.dtype} of shape {array.shape}; it was "
                    "written by another version or is something else"
                )
            if not np.isfinite(array).all():
                raise InvalidSnapshotError(f"{path}: {name} must be finite numbers")
        if (arrays["squares"] < 0).any():
            raise InvalidSnapshotError(f"{path}: squares must not be negative")
        return cls(arrays["values"].astype(np.float64), arrays["squares"].astype(np.float64))

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """For a file, in single precision: finer than what a few thousand steps can tell."""
        return {"values": self.values.astype(np.float32), "squares": self.squares.astype(np.float32)}

    def save(self, path: Path) -> None:
        write_arrays(path, self.arrays())
