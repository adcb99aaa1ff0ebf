"""What a replica tells the cluster: its cumulative counters, under the name of its incarnation.

An *incarnation* is one life of a replica's process. Counters start at zero with it and only grow, so a report says
all that the earlier ones said, and a lost, repeated, late or reordered one does no harm.
"""

import os
import socket
import time
import uuid
from dataclasses import dataclass, field

from goose.calibration import AcceptanceTable
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
    incarnation: Incarnation
    # grows by one a report of the incarnation
    sequence: int
    model: str
    max_model_len: int
    # the engine loop runs and its runner answers
    healthy: bool
    acceptance: AcceptanceTable
    stats: EngineStats
