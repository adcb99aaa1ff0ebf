"""What the cluster has for a replica that starts, joined to the calibration that it has anyway."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.sharing import merged
from goose.anisotropic.weights import Weights
from goose_ray.telemetry.warm_starts import LearnedWeights

__all__ = ["StartingPoint", "joined_start", "united"]


@dataclass(frozen=True, slots=True, eq=False)
class StartingPoint:
    weights: LearnedWeights | None
    texts: KnownTexts


def united(parts: Sequence[KnownTexts]) -> KnownTexts:
    """The texts of several replicas, each once: who began with another's texts has them still. `parts` come newest
    first, and so the newest texts come last.
    """
    seen: set[bytes] = set()
    found = KnownTexts.none()
    for part in parts:
        ends = np.cumsum(part.lengths)
        is_new = np.zeros(len(part), np.bool_)
        for place in reversed(range(len(part))):
            key = part.token_ids[ends[place] - part.lengths[place] : ends[place]].tobytes()
            is_new[place] = key not in seen
            seen.add(key)
        of_token = np.repeat(is_new, part.lengths)
        found = KnownTexts(
            part.token_ids[of_token],
            part.lengths[is_new],
            part.prompt_lengths[is_new],
            part.top_ids[of_token],
            part.top_probs[of_token],
        ).joined(found)
    return found


def joined_start(
    calibration: CalibrationFile | None, start: StartingPoint, *, vocab_size: int | None = None
) -> CalibrationFile:
    """The calibration, moved by what the cluster has learned; its texts first, so that they are forgotten first.

    Texts with tokens that a vocabulary of `vocab_size` has not are not this model's, and are left out.
    """
    own = calibration or CalibrationFile(Weights.prior())
    weights = own.weights
    # Those of another version of the model mean something else.
    if start.weights is not None and start.weights.values.shape == weights.values.shape:
        weights = merged(weights, [Weights(start.weights.values, start.weights.squares)])
    is_ours = vocab_size is None or start.texts.max_token_id < vocab_size
    return CalibrationFile(weights, own.texts.joined(start.texts) if is_ours else own.texts)
