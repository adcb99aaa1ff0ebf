"""How long a step takes, learned from steps: the denominator of "tokens per second" when a tree's size is chosen.

Seconds are those of the whole step, drafting and host work included. They are a piecewise linear function of the rows
of the forward, with knots in even steps of the logarithm because real latency has plateaus and jumps at few rows (one
row is a matrix-vector product, two are not) and no single line fits them; it need not rise. To it comes a linear term
in the sequences, the tokens of context and the pairs of a row and a context token.

The logarithms of all coefficients follow the steps by least squares that forget (an extended Kalman filter), so that
they are positive and what is known of them is relative. A machine that others use becomes slower as a whole: what
drifts most is a factor common to all, and rows that were not seen for a while follow those that were. A stalled step
counts as no more than a few standard deviations; only when several in a row lie as far off, and to the same side, has
the machine changed. Knows nothing of trees or models.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goose.tree import FloatArray

__all__ = ["CostModel", "StepShape"]

# Before anything is known: a step takes twice as long with this many rows more, and a sequence, a token of context and
# a pair take these parts of a one-row step.
_DOUBLING_ROWS = 64
_LINEAR = (0.01, 3e-5, 1e-5)
# Standard deviations, all of logarithms. Of the prior: of all knots together, of each knot for itself, whose neighbours
# at this many octaves are still alike, and of the linear term's coefficients.
_PRIOR_COMMON, _PRIOR_KNOT, _OCTAVES, _PRIOR_LINEAR = 0.5, 1.0, 1.5, 1.5
# Drift in one step: of all together as a part of the noise (what makes steps uneven makes them slower or faster for a
# while too), and of each for itself.
_DRIFT_COMMON, _DRIFT_OWN = 0.2, 0.002
# A step whose prediction deviates less than this from what is known is known; and no size is hoped to be cheaper than
# predicted by more deviations than make this.
_KNOWN = 0.3
# Of a step around its prediction: at first, the bounds, and how fast it follows.
_NOISE, _MIN_NOISE, _MAX_NOISE, _NOISE_RATE = 0.05, 0.02, 0.3, 0.02
# What lies further off than this many standard deviations is taken to lie there, unless so many in a row do.
_OUTLIER, _CHANGED = 3.0, 4


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's duration depends on."""

    # rows of the forward: prefill and tree nodes
    rows: int
    sequences: int
    # tokens with KV that are attended to, summed over sequences
    context: int
    # pairs of a row and a context token: the sum over sequences of rows * context
    attended: int


class CostModel:
    """Predicts the seconds of steps of up to `max_rows` rows. Never negative, never NaN.

    >>> model = CostModel()
    >>> for rows, seconds in [(1, 0.04), (8, 0.05), (64, 0.17)]:
    ...     model.observe(StepShape(rows, sequences=1, context=512, attended=512 * rows), seconds)
    >>> step = StepShape(rows=0, sequences=1, context=512, attended=0)
    >>> [round(float(s), 2) for s in model.curve(step, 64, context_per_row=512)[[1, 8, 64]]]
    [0.04, 0.05, 0.17]
    """

    def __init__(self, *, max_rows: int = 512) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {max_rows}")
        # [num_knots] float64
        self._knots = np.array(_knots(max_rows), dtype=np.float64)
        num_coefficients = len(self._knots) + len(_LINEAR)
        # [num_coefficients] float64: seconds at the knots, then those of a sequence, a context token and a pair
        self._seconds = np.zeros(num_coefficients)
        # [num_coefficients, num_coefficients] float64: covariance of their logarithms
        self._covariance = np.zeros((num_coefficients, num_coefficients))
        self._noise = _NOISE
        # outliers in a row, below zero for those that were too fast
        self._run = 0
        self.num_observed = 0

    @property
    def max_rows(self) -> int:
        """More rows are taken to cost proportionally more."""
        return int(self._knots[-1])

    @property
    def noise(self) -> float:
        """Relative standard deviation of a step from its prediction, as seen lately."""
        return self._noise

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step of that shape took `seconds`. What is not a positive number is left out."""
        if not math.isfinite(seconds) or seconds <= 0:
            return
        if not self.num_observed:
            self._begin(shape.rows, seconds)
        self.num_observed += 1
        covariance = self._covariance
        covariance += (_DRIFT_COMMON * self._noise) ** 2
        covariance.flat[:: len(covariance) + 1] += _DRIFT_OWN**2
        self._limit_forgetting()
        shares = self._weights(shape) * self._seconds
        predicted = float(shares.sum())
        shares /= predicted
        error = math.log(seconds / predicted)
        spread = covariance @ shares
        unknown = float(shares @ spread)
        reach = _OUTLIER * math.sqrt(unknown + self._noise**2)
        self._run = (max(0, self._run) + 1 if error > 0 else min(0, self._run) - 1) if abs(error) > reach else 0
        if abs(self._run) >= _CHANGED:
            covariance += _PRIOR_COMMON**2
            spread = covariance @ shares
            unknown = float(shares @ spread)
        else:
            error = min(reach, max(-reach, error))
        gain = spread / (unknown + self._noise**2)
        self._seconds *= np.exp(gain * error)
        covariance -= np.outer(gain, spread)
        if unknown < _KNOWN**2:
            # 1.25: from the mean absolute to the standard deviation, for a normal error
            noise = self._noise + _NOISE_RATE * (1.25 * abs(error) - self._noise)
            self._noise = min(_MAX_NOISE, max(_MIN_NOISE, noise))

    def predict(self, shape: StepShape) -> float:
        """Seconds of a step. Raises ValueError before the first observation."""
        self._require_observed()
        return float(self._weights(shape) @ self._seconds)

    def curve(self, fixed: StepShape, num_rows: int, *, context_per_row: float, optimism: float = 0.0) -> FloatArray:
        """[num_rows + 1] float32: seconds of the step `fixed` with r = 0 .. `num_rows` rows more.

        Each of those attends to `context_per_row` tokens. `optimism` standard deviations of what is not known are
        taken off, so that a size that only bad luck made look dear is tried again. Raises ValueError before the first
        observation.
        """
        self._require_observed()
        rows = np.arange(fixed.rows, fixed.rows + num_rows + 1, dtype=np.float64)
        knots = len(self._knots)
        values = self._seconds[:knots]
        if optimism:
            deviations = np.sqrt(np.clip(self._covariance.diagonal()[:knots], 0.0, _KNOWN**2))
            values = values * np.exp(-optimism * deviations)
        base = np.interp(rows, self._knots, values) * np.maximum(1.0, rows / self._knots[-1])
        for_sequence, for_token, for_pair = self._seconds[knots:].tolist()
        base += for_sequence * max(0, fixed.sequences - 1) + for_token * fixed.context + for_pair * fixed.attended
        base += for_pair * context_per_row * (rows - fixed.rows)
        seconds: FloatArray = base.astype(np.float32)
        return seconds

    def snapshot(self) -> dict[str, Any]:
        """Everything it knows, as JSON-able data."""
        return {
            "max_rows": self.max_rows,
            "seconds": self._seconds.tolist(),
            "covariance": self._covariance.tolist(),
            "noise": self._noise,
            "num_observed": self.num_observed,
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "CostModel":
        """A model that goes on where `snapshot` was taken. Raises ValueError naming the field that is wrong."""
        model = cls(max_rows=int(data["max_rows"]))
        seconds, covariance = np.array(data["seconds"], np.float64), np.array(data["covariance"], np.float64)
        for name, given, own in (("seconds", seconds, model._seconds), ("covariance", covariance, model._covariance)):
            if given.shape != own.shape or not np.isfinite(given).all():
                raise ValueError(f"{name} must be {list(own.shape)} finite numbers, not {list(given.shape)}")
        if (seconds < 0).any():
            raise ValueError(f"seconds must not be negative, not {seconds.min()}")
        noise = float(data["noise"])
        if not _MIN_NOISE <= noise <= _MAX_NOISE:
            raise ValueError(f"noise must be from {_MIN_NOISE} to {_MAX_NOISE}, not {noise}")
        model._seconds, model._covariance, model._noise = seconds, covariance, noise
        model.num_observed = int(data["num_observed"])
        return model

    def _begin(self, rows: int, seconds: float) -> None:
        """The prior, scaled by the first step."""
        knots = len(self._knots)
        unit = seconds / (1.0 + rows / _DOUBLING_ROWS)
        self._seconds[:knots] = unit * (1.0 + self._knots / _DOUBLING_ROWS)
        self._seconds[knots:] = unit * np.array(_LINEAR)
        octaves = np.abs(np.subtract.outer(np.log2(self._knots), np.log2(self._knots)))
        self._covariance[:knots, :knots] = _PRIOR_COMMON**2 + _PRIOR_KNOT**2 * np.exp(-octaves / _OCTAVES)
        self._covariance[range(knots, knots + len(_LINEAR)), range(knots, knots + len(_LINEAR))] = _PRIOR_LINEAR**2

    def _weights(self, shape: StepShape) -> NDArray[np.float64]:
        """[num_coefficients]: what each coefficient counts in a step of this shape."""
        weights = np.zeros(len(self._seconds))
        knots = self._knots
        upper = int(np.searchsorted(knots, shape.rows))
        if upper == 0:
            weights[0] = 1.0
        elif upper == len(knots):
            weights[upper - 1] = shape.rows / knots[-1]
        else:
            part = (shape.rows - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
            weights[upper - 1], weights[upper] = 1.0 - part, part
        weights[len(knots) :] = max(0, shape.sequences - 1), shape.context, shape.attended
        return weights

    def _limit_forgetting(self) -> None:
        """Nothing is known worse than at first, however long ago it was seen."""
        knots = len(self._knots)
        largest = math.hypot(_PRIOR_COMMON, _PRIOR_KNOT)
        variances = self._covariance.diagonal()[:knots]
        if variances.max() > largest**2:
            scale = np.ones(len(self._seconds))
            scale[:knots] = np.minimum(1.0, largest / np.sqrt(np.maximum(variances, largest**2)))
            self._covariance *= np.outer(scale, scale)

    def _require_observed(self) -> None:
        if not self.num_observed:
            raise ValueError("a cost model that has observed no step predicts nothing")


def _knots(max_rows: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: two an octave, the last at `max_rows` or above."""
    knots = [1]
    while knots[-1] < max_rows:
        last = knots[-1]
        knots.append(2 if last == 1 else last + (last // 2 if last & (last - 1) == 0 else last // 3))
    return knots
