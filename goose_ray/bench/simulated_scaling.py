"""Serve's autoscaling over simulated replicas: the real policy's wish, acted on once it has lasted for a delay.

Knows nothing of routing and of what requests are.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from goose_ray.bench.simulated_fleet import Fleet
from goose_ray.scaling.policy import Load, Targets, replicas_needed

__all__ = ["FleetScaling", "Scaler"]

# Rates that scaling goes by are those of about so many seconds.
_PACE_S = 5.0


class Scaler:
    """Of one deployment, between `least` and `most` replicas."""

    def __init__(self, *, least: int, most: int, upscale_delay_s: float, downscale_delay_s: float) -> None:
        self._least, self._most = least, most
        # by the sign of what is wanted: more, fewer
        self._delays_s = {1: upscale_delay_s, -1: downscale_delay_s}
        self._direction, self._since_s = 0, 0.0

    def target(self, loads: Sequence[Load], current: int, now: float) -> int:
        """How many there should be, of the `current` ones that run or start."""
        wanted = min(self._most, max(self._least, math.ceil(replicas_needed(loads, queued=0.0, targets=Targets()))))
        direction = (wanted > current) - (wanted < current)
        if direction != self._direction:
            self._direction, self._since_s = direction, now
        if not direction or now - self._since_s < self._delays_s[direction]:
            return current
        self._direction = 0
        return wanted


class FleetScaling:
    """Each kind of traffic is a deployment of its own. `capacities` are tokens a second of a full replica, by kind;
    `ready_s[r]` is when replica r will have started, infinite if it does not start.
    """

    def __init__(
        self,
        fleet: Fleet,
        ready_s: NDArray[np.float64],
        capacities: Sequence[float],
        *,
        initial: float,
        upscale_delay_s: float,
        downscale_delay_s: float,
        start_s: float,
        max_running: int,
    ) -> None:
        """Of each kind the part `initial` of the replicas is there at first, and a tenth of that at least."""
        self._fleet, self._ready_s, self._capacities = fleet, ready_s, capacities
        self._start_s, self._max_running = start_s, max_running
        # [2, num_replicas]: tokens, and answers, a second
        self._pace = np.zeros((2, len(fleet.kinds)))
        self._scalers = []
        for kind in range(len(capacities)):
            own = np.flatnonzero(fleet.kinds == kind)
            first = max(1, round(initial * len(own)))
            fleet.is_live[own[first:]] = False
            self._scalers.append(
                Scaler(
                    least=max(1, first // 10),
                    most=len(own),
                    upscale_delay_s=upscale_delay_s,
                    downscale_delay_s=downscale_delay_s,
                )
            )

    def observe(self, seconds: float) -> None:
        """What the fleet has done in its last tick, of so many seconds."""
        rates = np.stack([self._fleet.tokens_now, self._fleet.finished_now]) / seconds
        self._pace += seconds / _PACE_S * (rates - self._pace)

    def scale(self, now: float) -> None:
        fleet, loads = self._fleet, self._fleet.loads()
        for kind, scaler in enumerate(self._scalers):
            own = fleet.kinds == kind
            serving = np.flatnonzero(own & fleet.is_live & ~fleet.is_leaving)
            starting = np.flatnonzero(own & np.isfinite(self._ready_s))
            current = len(serving) + len(starting)
            target = scaler.target([self._load(kind, one, int(loads[one])) for one in serving.tolist()], current, now)
            if target > current:
                idle = np.flatnonzero(own & ~fleet.is_live & np.isinf(self._ready_s))
                self._ready_s[idle[: target - current]] = now + self._start_s
            elif target < current:
                least_busy = serving[np.argsort(loads[serving], kind="stable")]
                fleet.is_leaving[least_busy[: min(current - target, len(serving) - 1)]] = True

    def _load(self, kind: int, replica: int, requests: int) -> Load:
        """KV is not simulated."""
        return Load(
            requests=requests,
            waiting=max(0, requests - self._max_running),
            tokens_per_s=float(self._pace[0, replica]),
            finished_per_s=float(self._pace[1, replica]),
            capacity_tokens_per_s=self._capacities[kind],
        )
