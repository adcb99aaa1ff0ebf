"""Drawings of trees: nodes in the colours of their sources, the accepted path marked. Knows no text."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from goose.sources.registry import SOURCE_NAMES
from goose.tree import TokenTree
from goose_ray.bench.replay.plots import source_colours
from goose_ray.bench.replay.step_statistics import SampledTree

__all__ = ["plot_trees", "positions"]

_PATH_COLOUR = "black"
_NODE_SIZE = 55.0


def plot_trees(policy: str, trees: Sequence[SampledTree]) -> Figure:
    """One panel a step, depth to the right. Raises ValueError without trees."""
    if not trees:
        raise ValueError(f"policy {policy!r} built no tree to draw")
    figure = Figure(figsize=(5.2 * len(trees), 5.4), layout="constrained")
    for place, sampled in enumerate(trees):
        _draw(figure.add_subplot(1, len(trees), place + 1), sampled)
    figure.suptitle(policy)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=len(SOURCE_NAMES) + 2, fontsize="small")
    return figure


def positions(tree: TokenTree) -> NDArray[np.float64]:
    """[num_nodes, 2]: depth, and a height at which no two branches cross; a parent is at the middle of its children."""
    children: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            children[parent].append(node)
    heights = np.zeros(tree.num_nodes)
    # Leaves one below the other in depth-first order.
    stack, num_leaves = [0], 0
    while stack:
        node = stack.pop()
        if not children[node]:
            heights[node] = -num_leaves
            num_leaves += 1
        stack += reversed(children[node])
    for node in range(tree.num_nodes - 1, -1, -1):
        if children[node]:
            heights[node] = (heights[children[node][0]] + heights[children[node][-1]]) / 2
    return np.stack([tree.depths.astype(np.float64), heights], axis=1)


def _draw(axes: Axes, sampled: SampledTree) -> None:
    tree, accepted = sampled.tree, set(sampled.accepted_nodes.tolist())
    places = positions(tree)
    for node in range(1, tree.num_nodes):
        parent = int(tree.parents[node])
        on_path = node in accepted
        axes.plot(
            places[[parent, node], 0],
            places[[parent, node], 1],
            color=_PATH_COLOUR if on_path else "0.75",
            linewidth=2.5 if on_path else 0.8,
            zorder=1,
        )
    axes.scatter(places[:1, 0], places[:1, 1], color=_PATH_COLOUR, marker="s", s=_NODE_SIZE, zorder=2)
    for bits in np.unique(tree.sources[1:]).tolist():
        _draw_nodes(axes, places[1:][tree.sources[1:] == bits], bits)
    committed = f"{len(accepted)} of {tree.num_draft_nodes} draft nodes accepted"
    axes.set(title=f"{sampled.benchmark}: {committed}", xlabel="depth", yticks=[])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.title.set_fontsize("medium")
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def _draw_nodes(axes: Axes, places: NDArray[np.float64], sources: int) -> None:
    """Discs, cut into as many sectors as sources proposed the nodes; grey where the tree says none."""
    names = [name for number, name in enumerate(SOURCE_NAMES) if sources >> number & 1]
    colours = [source_colours(SOURCE_NAMES)[name] for name in names] or ["0.6"]
    for number, colour in enumerate(colours):
        angles = 2 * np.pi * np.linspace(number, number + 1, 24) / len(colours) + np.pi / 2
        rim = np.column_stack([np.cos(angles), np.sin(angles)])
        sector = rim if len(colours) == 1 else np.vstack([[0.0, 0.0], rim])
        # A marker is scaled to its extent, which is that of the sector and not of the disc.
        size = _NODE_SIZE * float(np.abs(sector).max()) ** 2
        axes.scatter(places[:, 0], places[:, 1], color=colour, marker=Path(sector), s=size, linewidths=0, zorder=2)


def _legend() -> list[Line2D]:
    dots = source_colours(SOURCE_NAMES).items()
    handles = [Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in dots]
    anchor = Line2D([], [], marker="s", linestyle="", color=_PATH_COLOUR, label="anchor")
    return [anchor, *handles, Line2D([], [], color=_PATH_COLOUR, linewidth=2.5, label="accepted path")]
