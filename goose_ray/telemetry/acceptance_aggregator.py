"""The cluster's shared memory: a Serve deployment actor around `ClusterMemory`.

Serve replaces the actor when it dies. Replicas report cumulative counters, so a new one is whole again after one round
of reports, but for the incarnations that are gone by then: those it knows if there is a snapshot to begin with. Serve
ships this module by value, so what it needs stands in other modules.
"""

import logging
import threading
import time
from collections.abc import Sequence

from goose.tuning import TreeTuning
from goose_ray.telemetry.acceptance_state import ClusterView
from goose_ray.telemetry.cluster_memory import ClusterMemory
from goose_ray.telemetry.report import ReplicaReport
from goose_ray.telemetry.snapshot_file import SnapshotError, SnapshotFile
from goose_ray.telemetry.warm_starts import Offer, WarmStart

__all__ = ["AGGREGATOR_NAME", "AcceptanceAggregator"]

AGGREGATOR_NAME = "acceptance_aggregator"

_SNAPSHOT_PERIOD_S = 10.0


class AcceptanceAggregator:
    """Made an actor by `ray.remote`. Its methods take microseconds to a few milliseconds and never wait for a file."""

    def __init__(
        self, live_for_s: float, half_life_s: float = 300.0, tunes: bool = True, snapshot: str | None = None
    ) -> None:
        self._memory = _new_memory(live_for_s, half_life_s, tunes)
        # Guards the memory: snapshots are made on a thread of their own.
        self._lock = threading.Lock()
        if snapshot is not None:
            self._file = SnapshotFile(snapshot)
            self._memory = _restored(self._file, _new_memory(live_for_s, half_life_s, tunes)) or self._memory
            threading.Thread(target=self._keep, name="goose-snapshot", daemon=True).start()

    def observe(self, report: ReplicaReport) -> TreeTuning | None:
        """The replica's tuning, if it is another than the one it has."""
        with self._lock:
            return self._memory.observe(report, time.monotonic())

    def exchange(self, reports: Sequence[ReplicaReport]) -> ClusterView:
        """Merges the reports, then shows everything known."""
        now = time.monotonic()
        with self._lock:
            for report in reports:
                self._memory.observe(report, now)
            return self._memory.view(now)

    def publish(self, offer: Offer) -> None:
        with self._lock:
            self._memory.publish(offer)

    def warm_start(self, model: str) -> WarmStart:
        with self._lock:
            return self._memory.warm_start(model)

    def _keep(self) -> None:
        while True:
            time.sleep(_SNAPSHOT_PERIOD_S)
            with self._lock:
                data = self._memory.snapshot(time.monotonic(), time.time())
            try:
                self._file.write(data)
            except SnapshotError as error:
                _log().warning("%s", error)


def _new_memory(live_for_s: float, half_life_s: float, tunes: bool) -> ClusterMemory:
    return ClusterMemory(
        live_for_s=live_for_s, half_life_s=half_life_s, tunes=tunes, now=time.monotonic(), started_at=time.time()
    )


def _restored(file: SnapshotFile, memory: ClusterMemory) -> ClusterMemory | None:
    try:
        found = file.read()
        if found is None:
            return None
        memory.restore(found, time.monotonic(), time.time())
    except (SnapshotError, ValueError) as error:
        _log().warning("the acceptance aggregator begins without its snapshot: %s", error)
        return None
    return memory


def _log() -> logging.Logger:
    # Not a global: this module travels by value, and a logger's locks do not.
    return logging.getLogger("goose_ray.telemetry.acceptance_aggregator")
