"""How fast what a process holds grows, from samples of its memory."""

from collections.abc import Sequence

import numpy as np

__all__ = ["slope"]

# Of the time: what fills with the traffic itself, such as threads and their arenas.
_WARM_UP = 1 / 3
# The least of each window counts: a step's own memory comes and goes, what has leaked is there all the time.
_WINDOW_S = 30.0


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Megabytes a minute, by least squares after the warm-up, of (seconds, megabytes); at least two windows of them."""
    seconds, megabytes = np.array(samples).T
    warm = seconds >= seconds[-1] * _WARM_UP
    windows = (seconds[warm] // _WINDOW_S).astype(int)
    numbers = np.unique(windows)
    least = [megabytes[warm][windows == number].min() for number in numbers]
    return float(np.polyfit(numbers * _WINDOW_S / 60, least, 1)[0])
