"""Pictures of shared learning over time: the simulated cluster, and what a change of traffic does to tau."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from goose_ray.bench.cluster.learning import Drift
from goose_ray.bench.simulation.records import Simulation

__all__ = ["plot_drift", "plot_simulation"]

_SMOOTHED_S = 5


def plot_simulation(found: Simulation) -> Figure:
    """Tau, requests and the part of the replicas that is tuned, one above the other; events as lines."""
    figure = Figure(figsize=(9.0, 6.6), layout="constrained")
    seconds = [moment.t for moment in found.timeline]
    panels: list[tuple[str, dict[str, Sequence[float]]]] = [
        ("tau", {"tau": _smoothed([moment.tau for moment in found.timeline])}),
        (
            "requests",
            {
                "running": [moment.running for moment in found.timeline],
                "waiting": [moment.waiting for moment in found.timeline],
                "arriving a second": [moment.arrived for moment in found.timeline],
            },
        ),
        (
            "replicas",
            {
                "live": [moment.live for moment in found.timeline],
                "tuned": [moment.live * moment.tuned for moment in found.timeline],
            },
        ),
    ]
    for place, (label, curves) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, place + 1)
        for name, values in curves.items():
            axes.plot(seconds, values, label=name, linewidth=1.2)
        for event in found.events[1:]:
            axes.axvline(event.at_s, color="0.6", linestyle="--", linewidth=1)
            if place == 0:
                axes.annotate(event.what, (event.at_s, 1.01), xycoords=("data", "axes fraction"), fontsize="small")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(fontsize="small")
    axes.set_xlabel("seconds")
    return figure


def plot_drift(drifts: Sequence[Drift]) -> Figure:
    """Tau over the fleet's steps since the traffic changed, one line a mode, one panel for each kind of weights."""
    rates = sorted({drift.learning_rate for drift in drifts}, reverse=True)
    figure = Figure(figsize=(5.4 * len(rates), 4.0), layout="constrained")
    for place, rate in enumerate(rates):
        axes = figure.add_subplot(1, len(rates), place + 1)
        for drift in drifts:
            if drift.learning_rate == rate:
                axes.plot(
                    [point.steps for point in drift.timeline],
                    [point.tau for point in drift.timeline],
                    label=f"tuning {drift.mode}",
                    marker=".",
                )
        axes.axvline(0, color="0.6", linestyle="--", linewidth=1)
        title = "weights learn" if rate else "weights held still"
        axes.set(title=title, xlabel="steps of the fleet since the change", ylabel="tau" if place == 0 else "")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def _smoothed(values: Sequence[float]) -> list[float]:
    width = min(_SMOOTHED_S, len(values))
    padded = np.pad(np.array(values), (width - 1, 0), mode="edge")
    smoothed: list[float] = np.convolve(padded, np.ones(width) / width, "valid").tolist()
    return smoothed
