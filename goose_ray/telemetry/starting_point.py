"""What the cluster has for a replica that starts, joined to the calibration that it has anyway."""

from dataclasses import dataclass

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.sharing import merged
from goose.anisotropic.weights import Weights

__all__ = ["StartingPoint", "joined_start"]


@dataclass(frozen=True, slots=True, eq=False)
class StartingPoint:
    """`weights` are a result of `goose.anisotropic.sharing.pooled`."""

    weights: Weights | None
    texts: KnownTexts


def joined_start(
    calibration: CalibrationFile | None, start: StartingPoint, *, vocab_size: int | None = None
) -> CalibrationFile:
    """The calibration, moved by what the cluster has learned; its texts first, so that they are forgotten first.

    Texts with tokens that a vocabulary of `vocab_size` has not are not this model's, and are left out.
    """
    own = calibration or CalibrationFile(Weights.prior())
    weights = own.weights if start.weights is None else merged(own.weights, [start.weights])
    is_ours = vocab_size is None or start.texts.max_token_id < vocab_size
    return CalibrationFile(weights, own.texts.joined(start.texts) if is_ours else own.texts)
