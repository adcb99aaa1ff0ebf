"""How many replicas the load needs: Serve's autoscaling policy for `GooseServer`.

    autoscaling_config:
      policy:
        policy_function: goose_ray.scaling.policy:CapacityPolicy
        policy_kwargs: {target_utilization: 0.8}

The work is what replicas do now as parts of what each could do, by tokens and by KV slots, and what waits on top of it.
Delays, factors and bounds of the autoscaling configuration are Serve's, and so is the first replica after none. Serve
pickles this module by value for its controller, which it must never stop: it imports nothing of ours, keeps no state
but what it has logged, and answers an error of its own with the number that there is.
"""

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CapacityPolicy", "Load", "Targets", "loads_of", "replicas_needed", "targets_of"]

# Serve's own: in a controller no other logger has a file.
logger = logging.getLogger("ray.serve")

# Serve lets some time go by before it follows.
_TOLD_EVERY_S = 60.0


@dataclass(frozen=True)
class Targets:
    # parts of the capacity in tokens a second, and of the KV slots, that replicas should be used to
    utilization: float = 0.8
    kv_use: float = 0.9
    # seconds that a request may wait for its place in a batch
    wait_s: float = 2.0


@dataclass(frozen=True)
class Load:
    """One replica's own account; the names are those of its metrics."""

    # requests that its engine has, and how many of them are in no batch yet
    requests: float = 0.0
    waiting: float = 0.0
    # requests answered a second
    finished_per_s: float = 0.0
    # part of the KV slots that running requests hold
    kv_use: float = 0.0
    tokens_per_s: float = 0.0
    # of a full batch, as the traffic is at present; 0: not known yet
    capacity_tokens_per_s: float = 0.0


def replicas_needed(
    loads: Sequence[Load], *, queued: float, targets: Targets, requests_of_late: float = math.inf
) -> float:
    """For the load of these replicas, and `queued` requests that have none. 0 without any request, else at least 1, and
    no more than there were requests of late or wait: one more would have nothing to do, however busy a request keeps
    the one that has it.
    """
    waiting = queued + sum(load.waiting for load in loads)
    requests = queued + sum(load.requests for load in loads)
    if not requests:
        return 0.0
    # Requests that will have waited too long when their turn comes, at the pace of the moment.
    too_late = max(0.0, waiting - targets.wait_s * sum(load.finished_per_s for load in loads))
    by_tokens = sum(_part(load.tokens_per_s, load.capacity_tokens_per_s) for load in loads)
    by_kv = sum(min(1.0, load.kv_use) for load in loads)
    if too_late:
        # Whatever capacity was measured: they could not do more.
        by_tokens = max(by_tokens, float(len(loads)))
    growth = 1.0 + too_late / max(1.0, requests - waiting)
    needed = max(growth * by_tokens / targets.utilization, growth * by_kv / targets.kv_use)
    return max(1.0, min(needed, max(requests_of_late, waiting)))


class CapacityPolicy:
    """Targets that cannot be are Serve's to be told of, in its log: the defaults take their place. An error from here
    would leave the whole application as it is, for ever.
    """

    def __init__(self, **named: Any) -> None:
        self._has_complained = False
        # the number that was logged last, and when
        self._told, self._told_s = 0, -math.inf
        try:
            self._targets = targets_of(named)
        except ValueError as error:
            self._targets = Targets()
            logger.error("CapacityPolicy: %s; %s instead", error, self._targets)

    def __call__(self, ctx: Any) -> tuple[float, dict[str, Any]]:
        """`ctx` is Serve's AutoscalingContext. As with Serve's policy the target stays while no replica runs, and until
        one has reported, requests are counted. The target stays too where something fails here, and does not fall while
        a replica has not told its load.
        """
        try:
            wanted = self._wanted(ctx)
            if not math.isfinite(wanted):
                raise ValueError(f"{wanted} replicas")
        except Exception:
            # Serve's controller would do nothing else for any application as long as this raises.
            if not self._has_complained:
                logger.exception("CapacityPolicy failed: the number of replicas stays at %s", ctx.target_num_replicas)
            self._has_complained = True
            return ctx.target_num_replicas, {}
        self._has_complained = False
        return wanted, {}

    def _tell(self, ctx: Any, loads: Sequence[Load], wanted: float) -> None:
        """Why the number is to change, but not at every look."""
        number = min(ctx.config.max_replicas, max(ctx.config.min_replicas, math.ceil(wanted)))
        now_s = time.monotonic()
        if number != ctx.target_num_replicas and (number != self._told or now_s - self._told_s >= _TOLD_EVERY_S):
            self._told, self._told_s = number, now_s
            logger.info(
                "CapacityPolicy: %d replicas instead of %d for %.0f of %.0f tokens/s, %.0f %% of the KV slots, "
                "%.0f requests in engines, %.0f of them waiting, and %.0f that have none",
                number,
                ctx.target_num_replicas,
                sum(load.tokens_per_s for load in loads),
                sum(load.capacity_tokens_per_s for load in loads),
                100 * sum(load.kv_use for load in loads) / len(loads),
                sum(load.requests for load in loads),
                sum(load.waiting for load in loads),
                ctx.total_queued_requests or 0.0,
            )

    def _wanted(self, ctx: Any) -> float:
        if not ctx.current_num_replicas:
            return float(ctx.target_num_replicas)
        loads = loads_of(ctx.raw_metrics or {})
        if not loads:
            return float(ctx.total_num_requests / ctx.config.get_target_ongoing_requests())
        queued = max(0.0, ctx.total_queued_requests or 0.0)
        requests_of_late = queued + _mean_requests(ctx.raw_metrics)
        wanted = replicas_needed(loads, queued=queued, targets=self._targets, requests_of_late=requests_of_late)
        if len(loads) < ctx.current_num_replicas:
            wanted = max(wanted, float(ctx.target_num_replicas))
        self._tell(ctx, loads, wanted)
        return wanted


def targets_of(named: Mapping[str, Any]) -> Targets:
    """Of `policy_kwargs`. Raises ValueError for a name that there is not, and for a target that is not positive."""
    targets = {f"target_{field}": field for field in Targets.__dataclass_fields__}
    for name, value in named.items():
        if name not in targets:
            raise ValueError(f"{name} must be one of {', '.join(targets)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < sys.float_info.max:
            # it comes to a log, and what has parts may hold secrets
            shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
            raise ValueError(f"{name} must be above 0, not {shown}")
    return Targets(**{targets[name]: float(value) for name, value in named.items()})


def loads_of(metrics: Mapping[str, Mapping[Any, Sequence[Any]]]) -> list[Load]:
    """The newest of each replica that has reported its load; `metrics` is by name, then by replica."""
    known = {name: metrics[name] for name in Load.__dataclass_fields__ if name in metrics}
    return [
        Load(**{name: float(series[replica][-1].value) for name, series in known.items() if series.get(replica)})
        for replica in known.get("capacity_tokens_per_s", {})
    ]


def _mean_requests(metrics: Mapping[str, Mapping[Any, Sequence[Any]]]) -> int:
    """Of all replicas, over what Serve keeps (`look_back_period_s`): of a client that asks one thing after the other
    there is one at a time, wherever it was. A replica that was not there yet had none. They do not look at the same
    moment, so that one request may be seen twice: the mean is rounded.
    """
    series = metrics["requests"].values()
    longest = max((len(each) for each in series), default=0)
    mean = sum(float(point.value) for each in series for point in each) / max(1, longest)
    return math.floor(mean + 0.5)


def _part(value: float, whole: float) -> float:
    """None of it where there is nothing to compare with; never more than all."""
    return min(1.0, value / whole) if whole > 0 else 0.0
