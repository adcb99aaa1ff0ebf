"""What a replica tells the cluster: its cumulative counters, under the name of its incarnation.

An *incarnation* is one life of a replica's process. Counters start at zero with it and only grow, so a report says
all that the earlier ones said, and a lost, repeated, late or reordered one does no harm.
"""

import os
import pickle
import socket
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from goose.calibration import AcceptanceTable
from goose.tuning import TreeTuning
from goose.tuning_counts import TuningCounts
from goose_ray.engine.stats import EngineStats

__all__ = ["Incarnation", "ReplicaReport"]


@dataclass(frozen=True, slots=True)
class Incarnation:
    replica_id: str
    # unix time, seconds
    started_at: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaReport:
    """Less than 4 kB when it travels, whatever was counted: pickling compresses."""

    incarnation: Incarnation
    # grows by one a report of the incarnation
    sequence: int
    # what it runs, whatever its name in the API is
    model: str
    max_model_len: int
    # the engine loop runs and its runner answers
    healthy: bool
    acceptance: AcceptanceTable
    stats: EngineStats
    # tag of the replica's traffic
    workload: str = ""
    # since its incarnation began, by its own clock
    uptime_s: float = 0.0
    # cumulative as the acceptance is, but not growing in every number: the newest stands
    tuning_counts: TuningCounts = field(default_factory=TuningCounts.none)
    # in force when it was made
    tuning: TreeTuning = field(default_factory=TreeTuning)
    # tokens of others' texts that the replica began with
    start_text_tokens: int = 0

    def __reduce__(self) -> tuple[Callable[[bytes], "ReplicaReport"], tuple[bytes]]:
        values = tuple(getattr(self, name) for name in _FIELDS)
        return _unpacked, (zlib.compress(pickle.dumps(values, pickle.HIGHEST_PROTOCOL), 1),)


# Looked up once: an aggregator unpacks hundreds of reports a second.
_FIELDS = tuple(each.name for each in fields(ReplicaReport))


def _unpacked(packed: bytes) -> ReplicaReport:
    values: tuple[Any, ...] = pickle.loads(zlib.decompress(packed))
    return ReplicaReport(**dict(zip(_FIELDS, values, strict=True)))
