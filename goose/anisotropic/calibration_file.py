"""What a calibration leaves `anisotropic` to start from: weights and, if they are to be kept, texts of the target."""

from dataclasses import dataclass, field
from pathlib import Path

from goose.anisotropic.known_texts import ARRAY_NAMES, KnownTexts
from goose.anisotropic.weights import ARRAY_NAMES as WEIGHT_NAMES
from goose.anisotropic.weights import Weights
from goose.errors import InvalidSnapshotError
from goose.npz import read_arrays, write_arrays

__all__ = ["CalibrationFile"]


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationFile:
    """Weights are of use to any model, texts to the one that wrote them."""

    weights: Weights
    texts: KnownTexts = field(default_factory=KnownTexts.none)

    @classmethod
    def load(cls, path: Path) -> "CalibrationFile":
        """Raises InvalidSnapshotError if the file cannot be read or holds something else."""
        arrays = read_arrays(path, WEIGHT_NAMES, ARRAY_NAMES)
        weights = Weights.from_arrays(arrays, path)
        missing = [name for name in ARRAY_NAMES if name not in arrays]
        if len(missing) == len(ARRAY_NAMES):
            return cls(weights)
        if missing:
            raise InvalidSnapshotError(f"{path} lacks the arrays {', '.join(missing)} of its texts")
        return cls(weights, KnownTexts.from_arrays(arrays, path))

    def save(self, path: Path) -> None:
        texts = self.texts.arrays() if len(self.texts) else {}
        write_arrays(path, {**self.weights.arrays(), **texts})
