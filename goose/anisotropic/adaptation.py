"""What a tuning is to the model: where each new request's own biases and temperature start, and where they are now.

The three classes of own matches share the offset of the group `context`; pooled matches and rows alone have theirs.
"""

import numpy as np
from numpy.typing import NDArray

from goose.anisotropic.workspace import NUM_ADAPTED, OWN_TREND, SUPPORT_BIAS, TEMPERATURE, TOP_TREND
from goose.tuning import TreeTuning
from goose.tuning_counts import GROUPS

__all__ = ["group_offsets", "starting_values"]

_START_TREND = 0.6
# Group of each support class.
_GROUP_OF_CLASS = np.array([0, 0, 0, 1, 2])
_CLASSES = slice(SUPPORT_BIAS, SUPPORT_BIAS + len(_GROUP_OF_CLASS))
_CLASSES_OF_GROUP = np.bincount(_GROUP_OF_CLASS, minlength=len(GROUPS))


def starting_values(tuning: TreeTuning) -> NDArray[np.float64]:
    """[NUM_ADAPTED]: a row of `Requests.adapted` for a request that starts."""
    values = np.zeros(NUM_ADAPTED)
    values[_CLASSES] = np.array(tuning.offsets)[_GROUP_OF_CLASS]
    values[TEMPERATURE] = tuning.temperature
    values[OWN_TREND] = values[TOP_TREND] = _START_TREND
    return values


def group_offsets(adapted: NDArray[np.float64]) -> NDArray[np.float64]:
    """[num_requests, num_groups] of rows of `Requests.adapted`: the mean bias of each group's classes."""
    biases = adapted[:, _CLASSES]
    sums = np.stack([biases[:, group == _GROUP_OF_CLASS].sum(axis=1) for group in range(len(GROUPS))], axis=1)
    return sums / _CLASSES_OF_GROUP
