"""The real aggregator, as simulated replicas reach it: packed reports in, packed answers out, and the time of that."""

import pickle
import time

from goose.tuning import TreeTuning
from goose_ray.telemetry.cluster_memory import ClusterMemory

__all__ = ["SimulatedAggregator"]

# Half-life, and silence after which a replica is gone, in reports.
_HALF_LIFE_S, _SILENT_PERIODS = 300.0, 3
# Of tunings that one aggregator tells; more than there will be.
_VERSIONS = 10_000_000


class SimulatedAggregator:
    """`period_s` is that of a replica's reports."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self.cpu_s, self.reports, self.num_bytes, self.first_version = 0.0, 0, 0, 0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Anew, with nothing known."""
        # above all versions of the one before
        self.first_version += _VERSIONS
        self.memory = ClusterMemory(
            live_for_s=_SILENT_PERIODS * self._period_s,
            half_life_s=_HALF_LIFE_S,
            now=now,
            started_at=self.first_version,
        )
        self.known: set[str] = set()

    def observe(self, packed: bytes, incarnation: str, now: float) -> TreeTuning | None:
        started_s = time.process_time()
        answer = self.memory.observe(pickle.loads(packed), now)
        answered = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        self.cpu_s += time.process_time() - started_s
        self.reports += 1
        self.num_bytes += len(packed)
        self.known.add(incarnation)
        tuning: TreeTuning | None = pickle.loads(answered)
        return tuning
