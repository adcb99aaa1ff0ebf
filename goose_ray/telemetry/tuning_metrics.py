"""The tunings that replicas use, as Prometheus gauges."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily

from goose.tuning_counts import GROUPS
from goose_ray.telemetry.acceptance_state import ReplicaView

__all__ = ["tuning_gauges"]


def tuning_gauges(replicas: Iterable[ReplicaView], model: str) -> Iterator[GaugeMetricFamily]:
    """One series a replica; `group` is a source group of `goose.tuning_counts`."""
    version = GaugeMetricFamily(
        "goose_tuning_version",
        "Version of the tree tuning in use: newer ones are larger; 0: none was told yet.",
        labels=["model_name", "replica"],
    )
    offset = GaugeMetricFamily(
        "goose_tuning_offset",
        "Log-odds that tuning adds to the nodes of a group.",
        labels=["model_name", "replica", "group"],
    )
    temperature = GaugeMetricFamily(
        "goose_tuning_temperature", "What tuning multiplies log-odds by.", labels=["model_name", "replica"]
    )
    for replica in replicas:
        name, tuning = replica.report.incarnation.replica_id, replica.report.tuning
        version.add_metric([model, name], tuning.version)
        temperature.add_metric([model, name], tuning.temperature)
        for group, value in zip(GROUPS, tuning.offsets, strict=True):
            offset.add_metric([model, name, group], value)
    yield from (version, offset, temperature)
