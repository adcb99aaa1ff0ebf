"""The engine's side of what a speculator learns: tuned from outside, counted for tuning, taken along.

None of it touches an output, so a fault in it is logged and costs nothing but what would have been learned. Speculators
that learn nothing have nothing to tune.
"""

import logging
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from goose.tuning import TreeTuning
from goose.tuning_counts import TuningCounts

if TYPE_CHECKING:
    from goose.anisotropic.calibration_file import CalibrationFile

__all__ = ["Learning", "TunableSpeculator"]

_logger = logging.getLogger(__name__)


@runtime_checkable
class TunableSpeculator(Protocol):
    """What is needed of `goose.speculator.Speculator` here."""

    def tune(self, tuning: TreeTuning) -> None: ...

    def tuning_counts(self) -> TuningCounts: ...

    def learned(self, max_tokens: int) -> "CalibrationFile | None": ...


class Learning:
    """Belongs to the engine's thread, as the speculator does."""

    def __init__(self, speculator: object) -> None:
        self._speculator = speculator if isinstance(speculator, TunableSpeculator) else None
        # what requests start with at present
        self.tuning = TreeTuning()
        self._counts = TuningCounts.none()

    def tune(self, tuning: TreeTuning) -> None:
        if self._speculator is None:
            return
        try:
            self._speculator.tune(tuning)
        except Exception:
            _logger.exception("trees could not be tuned to %s; they stay as they were", tuning)
        else:
            self.tuning = tuning

    def counts(self) -> TuningCounts:
        """Cumulative; those of before if the new ones cannot be had."""
        try:
            if self._speculator is not None:
                self._counts = self._speculator.tuning_counts()
        except Exception:
            _logger.exception("what trees are tuned by cannot be counted")
        return self._counts

    def learned(self, max_tokens: int) -> "CalibrationFile | None":
        """For another replica to start from; None if there is nothing."""
        try:
            return None if self._speculator is None else self._speculator.learned(max_tokens)
        except Exception:
            _logger.exception("what was learned cannot be taken along")
            return None
