"""The calibration that a model's drafts start from: the deployment's file, or the one that comes with the model."""

from importlib.resources import files
from pathlib import Path

from goose.anisotropic.calibration_file import CalibrationFile
from goose.errors import InvalidSnapshotError
from goose_ray.config import EMBEDDED_MODEL
from goose_ray.errors import ConfigError

__all__ = ["SHIPPED_CALIBRATIONS", "load_calibration", "require_vocabulary"]

SHIPPED_CALIBRATIONS = {EMBEDDED_MODEL: Path(str(files("goose_ray.models") / "data" / f"{EMBEDDED_MODEL}.npz"))}


def load_calibration(choice: Path | str, model: str) -> CalibrationFile | None:
    """`choice` is `engine.calibration`; None if nothing but the prior is to be used. Raises ConfigError."""
    path = SHIPPED_CALIBRATIONS.get(model) if choice == "auto" else None if choice == "none" else Path(choice)
    if path is None:
        return None
    try:
        return CalibrationFile.load(path)
    except InvalidSnapshotError as error:
        raise ConfigError(f"engine.calibration: {error}; name a file that `goose calibrate` wrote") from error


def require_vocabulary(calibration: CalibrationFile | None, model: str, vocab_size: int) -> None:
    """Raises ConfigError if the calibration's texts cannot be the model's."""
    if calibration is not None and calibration.texts.max_token_id >= vocab_size:
        raise ConfigError(
            f"engine.calibration: its texts hold token {calibration.texts.max_token_id}, but {model!r} has "
            f"{vocab_size} tokens: calibrate with this model"
        )
