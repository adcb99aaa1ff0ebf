"""Plots of a study. Draws on figures of its own: no display, no state shared with other users of matplotlib."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from goose.calibration import DEPTH_EDGES
from goose_ray.bench.replay.bootstrap import Interval
from goose_ray.bench.replay.study import PolicyFigures, Study

__all__ = [
    "plot_acceptance",
    "plot_macro_tau",
    "plot_reliability",
    "plot_shape",
    "plot_tau_by_benchmark",
    "source_colours",
]

# A depth with fewer attempts says nothing.
_MIN_ATTEMPTS = 20


def source_colours(names: Sequence[str]) -> Mapping[str, str]:
    """The same colour for a source in every plot: by its place among the registered ones."""
    return {name: f"C{number}" for number, name in enumerate(names)}


def plot_macro_tau(study: Study) -> Figure:
    """Macro tau over verified nodes, one line a policy: all, natural and repetitive replies."""
    parts = list(study.figures[0].parts)
    figure = Figure(figsize=(4.6 * len(parts), 4.2), layout="constrained")
    for place, part in enumerate(parts):
        axes = figure.add_subplot(1, len(parts), place + 1)
        for number, policy in enumerate(study.policies):
            own = [one for one in study.figures if one.policy == policy]
            intervals = [one.parts[part].macro for one in own]
            axes.errorbar(
                [one.match.nodes for one in own],
                [interval.value for interval in intervals],
                yerr=_errors(intervals),
                label=policy,
                color=f"C{number}",
                marker="o",
                markersize=4,
                capsize=3,
            )
        axes.set(title=f"{part} replies", xlabel="nodes verified per step")
        axes.grid(alpha=0.3)
        if place == 0:
            axes.set_ylabel("macro tau, 95 % intervals")
            axes.legend()
    return figure


def plot_tau_by_benchmark(study: Study, wanted: float) -> Figure:
    """Tau by benchmark, one bar a policy."""
    own = study.at(wanted)
    names = list(own[0].parts["all"].benchmarks)
    width = 0.8 / len(own)
    figure = Figure(figsize=(max(7.0, 0.5 + 0.17 * len(names) * len(own)), 5.4), layout="constrained")
    axes = figure.add_subplot()
    for number, one in enumerate(own):
        intervals = [one.parts["all"].benchmarks[name] for name in names]
        axes.bar(
            np.arange(len(names)) + (number - (len(own) - 1) / 2) * width,
            [interval.value for interval in intervals],
            width,
            yerr=_errors(intervals),
            label=f"{one.policy} ({one.match.nodes:.1f} nodes)",
            color=f"C{study.policies.index(one.policy)}",
            error_kw={"elinewidth": 0.8},
        )
    axes.set_xticks(np.arange(len(names)), names, rotation=35, ha="right")
    axes.set(ylabel="tau, 95 % intervals", title=f"{wanted:g} nodes verified per step wanted")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(ncols=2, fontsize="small")
    return figure


def plot_acceptance(study: Study, wanted: float) -> Figure:
    """Acceptance of reached nodes by depth, one line a source, one panel a policy."""
    own = study.at(wanted)
    figure, panels = _panels(len(own))
    for axes, one in zip(panels, own, strict=True):
        table = one.statistics.acceptance
        for name, colour in source_colours(table.source_names).items():
            attempted, accepted = table.counts(name).sum(axis=2)
            known = attempted >= _MIN_ATTEMPTS
            if known.any():
                depths = np.array(DEPTH_EDGES)[known]
                axes.plot(depths, (accepted / np.maximum(attempted, 1))[known], marker="o", label=name, color=colour)
        axes.set(title=one.policy, xlabel="depth", xscale="log", xlim=(0.9, 80), ylim=(0, 1))
        axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
    panels[0].set_ylabel("accepted / reached")
    return figure


def plot_shape(study: Study, wanted: float) -> Figure:
    """Where the draft nodes of a step are, and where the accepted ones were: spine and branches."""
    own = study.at(wanted)
    figure = Figure(figsize=(9.0, 1.4 + 0.4 * len(own)), layout="constrained")
    labels = [one.policy for one in own]
    shapes = [one.statistics.shape for one in own]
    both = (
        ("verified draft nodes", [(shape.spine_nodes, shape.branch_nodes) for shape in shapes]),
        ("accepted draft nodes", [(shape.spine_accepted, shape.branch_accepted) for shape in shapes]),
    )
    for place, (title, counts) in enumerate(both):
        axes = figure.add_subplot(1, 2, place + 1)
        spine = np.array([on_spine / max(1, on_spine + off) for on_spine, off in counts])
        drafted = np.array([float(sum(pair) > 0) for pair in counts])
        axes.barh(labels, spine, color="C0", label="spine")
        axes.barh(labels, drafted - spine, left=spine, color="C1", label="branches")
        axes.invert_yaxis()
        axes.set(title=title, xlim=(0, 1), xlabel="share")
        if place == 0:
            axes.legend(fontsize="small")
        else:
            axes.set_yticks([])
    return figure


def plot_reliability(figures: Sequence[PolicyFigures]) -> Figure:
    """Observed over predicted acceptance, and below how many nodes each bin holds; one panel a policy that predicts.

    Raises ValueError if none does.
    """
    predicting = [(one, found) for one in figures if (found := one.statistics.reliability()) is not None]
    if not predicting:
        raise ValueError("no policy predicts probabilities")
    count = len(predicting)
    figure = Figure(figsize=(3.8 * count, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, count, height_ratios=(3, 1))
    for place, (one, found) in enumerate(predicting):
        axes, below = figure.add_subplot(grid[0, place]), figure.add_subplot(grid[1, place])
        axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
        axes.plot([b.predicted for b in found.bins], [b.observed for b in found.bins], marker="o", color="C0")
        axes.set(title=f"{one.policy}, ECE {found.ece:.3f}", xlim=(0, 1), ylim=(0, 1), ylabel="accepted / reached")
        axes.grid(alpha=0.3)
        lows = [b.low for b in found.bins]
        widths = [b.high - b.low for b in found.bins]
        below.bar(lows, [b.num_nodes for b in found.bins], widths, align="edge", color="C0")
        below.set(xlabel="predicted P(accepted | parent reached)", ylabel="nodes", xlim=(0, 1), yscale="log")
        below.yaxis.set_minor_formatter(NullFormatter())
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, 4)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.6 * columns, 3.2 * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]


def _errors(intervals: Sequence[Interval]) -> list[list[float]]:
    """Lengths of the bars below and above; a percentile may fall on the wrong side of the figure itself."""
    below = [max(0.0, interval.value - interval.low) for interval in intervals]
    return [below, [max(0.0, interval.high - interval.value) for interval in intervals]]
