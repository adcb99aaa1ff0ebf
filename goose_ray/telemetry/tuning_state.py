"""What each replica's trees should be tuned to, from the recent counts of all: the aggregator's part without the actor.

Counts forget exponentially, in whole buckets of time on the aggregator's clock, so that replicas' clocks do not matter.
Reports are cumulative: what one adds to the last of its incarnation is counted once, in the bucket that it arrives in.
A replica's tuning stands on three levels that share no count, all of its model: other workloads, others of its
workload, its own. Knows neither Ray nor time: the caller says what time it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from goose.tuning import TreeTuning, solve
from goose.tuning_counts import TuningCounts
from goose_ray.telemetry.report import ReplicaReport

__all__ = ["TuningState"]

# Buckets of time in a half-life: the age of a count is known that well.
_BUCKETS = 20
# Workloads told apart; the reports of more are one.
_MAX_WORKLOADS = 64


class _Workload(NamedTuple):
    """Replicas that learn from each other first."""

    model: str
    tag: str


_OTHERS = _Workload("", "")


@dataclass(slots=True)
class _Recent:
    """Counts weighted by age, as of a bucket."""

    counts: TuningCounts
    bucket: int


@dataclass(slots=True)
class _Replica:
    workload: _Workload
    sequence: int
    # as reported last
    read: TuningCounts
    recent: _Recent
    # what it was told last; None: nothing yet
    told: TreeTuning | None = None


class TuningState:
    """`half_life_s`: age at which a count weighs half. `first_version` should be above those of an earlier state."""

    def __init__(self, *, half_life_s: float, first_version: int = 1) -> None:
        self._half_life_s = half_life_s
        self._next_version = first_version
        self._replicas: dict[str, _Replica] = {}
        self._workloads: dict[_Workload, _Recent] = {}

    def observe(self, report: ReplicaReport, now: float) -> None:
        """Takes over what no report of its incarnation has said before; late and repeated ones say nothing."""
        bucket = self._bucket(now)
        known = self._replicas.get(report.incarnation.id)
        if known is None:
            # How its counts came about is not known: evenly over its life.
            new = report.tuning_counts * self._mean_weight(report.uptime_s)
            workload = self._workload(_Workload(report.model, report.workload))
            known = _Replica(workload, 0, TuningCounts.none(), _Recent(TuningCounts.none(), bucket))
            self._replicas[report.incarnation.id] = known
        elif report.sequence > known.sequence:
            new = report.tuning_counts - known.read
        else:
            return
        known.sequence, known.read = report.sequence, report.tuning_counts
        self._add(known.recent, new, bucket)
        self._add(self._workloads.setdefault(known.workload, _Recent(TuningCounts.none(), bucket)), new, bucket)

    def tuning(self, incarnation: str, now: float) -> TreeTuning:
        """The same as before, version included, unless the counts have come to ask for clearly different trees."""
        known = self._replicas[incarnation]
        bucket = self._bucket(now)
        own = self._aged(known.recent, bucket)
        alike = self._aged(self._workloads[known.workload], bucket)
        others = TuningCounts.none()
        for workload, recent in self._workloads.items():
            if workload.model == known.workload.model and workload != known.workload:
                others = others + self._aged(recent, bucket)
        found = solve([others, alike - own, own])
        if known.told is None or not found.is_near(known.told):
            known.told = found.with_version(self._next_version)
            self._next_version += 1
        return known.told

    def forget(self, incarnation: str) -> None:
        """It will not be heard of again. What it counted goes on fading away."""
        self._replicas.pop(incarnation, None)

    def snapshot(self, now: float) -> dict[str, Any]:
        """JSON-able; `restore` gives it back."""
        bucket = self._bucket(now)
        return {
            "next_version": self._next_version,
            "workloads": [
                {**workload._asdict(), "recent": _plain(self._aged(recent, bucket))}
                for workload, recent in self._workloads.items()
            ],
            "replicas": {
                key: {
                    **known.workload._asdict(),
                    "sequence": known.sequence,
                    "read": _plain(known.read),
                    "recent": _plain(self._aged(known.recent, bucket)),
                }
                for key, known in self._replicas.items()
            },
        }

    def restore(self, snapshot: Mapping[str, Any], now: float, *, age_s: float) -> None:
        """Into a state that has seen nothing; `age_s` is how long ago the snapshot was made. Raises ValueError or
        KeyError if it is none.
        """
        bucket, weight = self._bucket(now), 0.5 ** (max(0.0, age_s) / self._half_life_s)
        workloads = {_workload_in(value): _counts(value["recent"]) * weight for value in snapshot["workloads"]}
        replicas = {
            key: _Replica(
                _workload_in(value),
                int(value["sequence"]),
                _counts(value["read"]),
                _Recent(_counts(value["recent"]) * weight, bucket),
            )
            for key, value in snapshot["replicas"].items()
        }
        self._next_version = max(self._next_version, int(snapshot["next_version"]))
        self._workloads = {workload: _Recent(counts, bucket) for workload, counts in workloads.items()}
        self._replicas = replicas

    def _workload(self, workload: _Workload) -> _Workload:
        return workload if workload in self._workloads or len(self._workloads) < _MAX_WORKLOADS else _OTHERS

    def _bucket(self, now: float) -> int:
        return math.floor(now * _BUCKETS / self._half_life_s)

    def _aged(self, recent: _Recent, bucket: int) -> TuningCounts:
        return recent.counts * 0.5 ** ((bucket - recent.bucket) / _BUCKETS) if bucket > recent.bucket else recent.counts

    def _add(self, recent: _Recent, new: TuningCounts, bucket: int) -> None:
        recent.counts = self._aged(recent, bucket) + new
        recent.bucket = max(bucket, recent.bucket)

    def _mean_weight(self, age_s: float) -> float:
        """Of counts that came evenly over that time up to now."""
        decay = math.log(2) * age_s / self._half_life_s
        return -math.expm1(-decay) / decay if decay > 0 else 1.0


def _workload_in(value: Mapping[str, Any]) -> _Workload:
    return _Workload(str(value["model"]), str(value["tag"]))


def _plain(counts: TuningCounts) -> dict[str, Any]:
    return {"sums": counts.sums.tolist(), "num_trees": counts.num_trees}


def _counts(value: Mapping[str, Any]) -> TuningCounts:
    sums = np.array(value["sums"], dtype=np.float64)
    if sums.shape != TuningCounts.none().sums.shape or not np.isfinite(sums).all():
        raise ValueError(f"tuning counts must be numbers of shape {TuningCounts.none().sums.shape}, not {sums.shape}")
    return TuningCounts(sums, float(value["num_trees"]))
