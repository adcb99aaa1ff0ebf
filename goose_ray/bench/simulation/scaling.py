"""Serve's autoscaling over simulated replicas: a policy's wish, acted on once it has lasted for a delay.

The policy hears what Serve's controller would: of each replica what the real meter makes of its counters, and of all
the mean of the requests under way, both anew every ten seconds. Knows nothing of routing and of what requests are.
"""

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from goose_ray.bench.simulation.fleet import Fleet
from goose_ray.bench.simulation.records import ScalingPlan
from goose_ray.config import EngineConfig
from goose_ray.scaling.load_meter import LoadMeter
from goose_ray.scaling.policy import Load, Targets, replicas_needed

__all__ = ["FleetScaling", "Scaler"]

# Serve's defaults: how often replicas and ingresses push what they measured, and over how long requests are averaged.
_PUSH_S, _LOOK_BACK_S = 10, 30


class Scaler:
    """Of one deployment, between `least` and `most` replicas."""

    def __init__(self, *, least: int, most: int, upscale_delay_s: float, downscale_delay_s: float) -> None:
        self._least, self._most = least, most
        # by the sign of what is wanted: more, fewer
        self._delays_s = {1: upscale_delay_s, -1: downscale_delay_s}
        self._direction, self._since_s = 0, 0.0

    def target(self, wish: float, current: int, now: float) -> int:
        """How many there should be, of the `current` ones that run or start, if the policy wants so many."""
        wanted = min(self._most, max(self._least, math.ceil(wish)))
        direction = (wanted > current) - (wanted < current)
        if direction != self._direction:
            self._direction, self._since_s = direction, now
        if not direction or now - self._since_s < self._delays_s[direction]:
            return current
        self._direction = 0
        return wanted


class FleetScaling:
    """Each kind of traffic is a deployment of its own. `ready_s[r]` is when replica r will have started, infinite if it
    does not start.
    """

    def __init__(
        self, fleet: Fleet, ready_s: NDArray[np.float64], plan: ScalingPlan, *, start_s: float, max_running: int
    ) -> None:
        """Of each kind the part `plan.initial` of the replicas is there at first, and a tenth of that at least."""
        self._fleet, self._ready_s, self._start_s, self._max_running = fleet, ready_s, start_s, max_running
        self._engine = EngineConfig(max_running_requests=max_running, max_batch_rows=fleet.max_rows)
        self._target_ongoing = plan.target_ongoing
        # by replica, of its incarnation
        self._meters: dict[int, tuple[str, LoadMeter]] = {}
        self._scalers = []
        # requests under way, of them those that wait, by kind: one entry a second
        self._under_way: deque[NDArray[np.int64]] = deque(maxlen=_LOOK_BACK_S)
        self._wishes: list[float] = []
        num_kinds = int(fleet.kinds.max()) + 1
        for kind in range(num_kinds):
            own = np.flatnonzero(fleet.kinds == kind)
            first = max(1, round(plan.initial * len(own)))
            fleet.is_live[own[first:]] = False
            self._wishes.append(first)
            self._scalers.append(
                Scaler(
                    least=max(1, first // 10),
                    most=len(own),
                    upscale_delay_s=plan.upscale_delay_s,
                    downscale_delay_s=plan.downscale_delay_s,
                )
            )

    def scale(self, now: float) -> None:
        """To be called once a second."""
        fleet, loads = self._fleet, self._fleet.loads()
        waiting = np.maximum(0, loads - self._max_running)
        size = len(self._scalers)
        self._under_way.append(
            np.stack([np.bincount(fleet.kinds, weights=each, minlength=size) for each in (loads, waiting)])
        )
        is_heard = round(now) % _PUSH_S == 0
        for kind, scaler in enumerate(self._scalers):
            own = fleet.kinds == kind
            serving = np.flatnonzero(own & fleet.is_live & ~fleet.is_leaving)
            starting = np.flatnonzero(own & np.isfinite(self._ready_s))
            if is_heard:
                self._wishes[kind] = self._wish(kind, serving, loads, now)
            current = len(serving) + len(starting)
            target = scaler.target(self._wishes[kind], current, now)
            if target > current:
                idle = np.flatnonzero(own & ~fleet.is_live & np.isinf(self._ready_s))
                self._ready_s[idle[: target - current]] = now + self._start_s
            elif target < current:
                least_busy = serving[np.argsort(loads[serving], kind="stable")]
                fleet.is_leaving[least_busy[: min(current - target, len(serving) - 1)]] = True

    def _wish(self, kind: int, serving: NDArray[np.int64], loads: NDArray[np.int64], now: float) -> float:
        requests, waiting = np.mean(list(self._under_way), axis=0)[:, kind].tolist()
        if self._target_ongoing is not None:
            return float(requests / self._target_ongoing)
        told = [self._load(replica, int(loads[replica]), now) for replica in serving.tolist()]
        return replicas_needed(told, queued=waiting, targets=Targets(), requests_of_late=float(requests))

    def _load(self, replica: int, requests: int, now: float) -> Load:
        """As many requests as a batch holds: others wait in Serve's queue. KV is not simulated."""
        life = self._fleet.incarnations[replica].id
        known, meter = self._meters.get(replica, ("", None))
        if meter is None or known != life:
            meter = LoadMeter(self._engine)
            self._meters[replica] = life, meter
        return meter.measure(self._fleet.stats(replica, min(requests, self._max_running)), now)
