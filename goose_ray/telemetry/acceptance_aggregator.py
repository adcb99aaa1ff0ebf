"""The cluster's shared memory of acceptance: a Serve deployment actor around `AcceptanceState`.

Serve replaces the actor, without its state, when it dies. Replicas report cumulative counters, so a new one is whole
again after one round of reports, but for the incarnations that are gone by then: what they counted dies with the
actor that knew it. Serve ships this module by value, so what it needs stands in other modules.
"""

import time
from collections.abc import Sequence

from goose_ray.telemetry.acceptance_state import AcceptanceState, ClusterView
from goose_ray.telemetry.report import ReplicaReport

__all__ = ["AGGREGATOR_NAME", "AcceptanceAggregator"]

AGGREGATOR_NAME = "acceptance_aggregator"


class AcceptanceAggregator:
    """Made an actor by `ray.remote`. Its methods take microseconds to a few milliseconds and never wait."""

    def __init__(self, live_for_s: float) -> None:
        self._state = AcceptanceState(live_for_s=live_for_s)

    def observe(self, report: ReplicaReport) -> None:
        self._state.observe(report, time.monotonic())

    def exchange(self, reports: Sequence[ReplicaReport]) -> ClusterView:
        """Merges the reports, then shows everything known."""
        now = time.monotonic()
        for report in reports:
            self._state.observe(report, now)
        return self._state.view(now)
