"""Predicted against observed acceptance: how far a policy's probabilities can be believed.

Of reached draft nodes alone: what was never tried has no outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUM_BINS", "Reliability", "ReliabilityBin", "reliability"]

NUM_BINS = 20


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Nodes of probability in [low, high), of the last bin in [low, high]."""

    low: float
    high: float
    num_nodes: int
    # mean probability, and the share of nodes that were accepted
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """`ece`, the expected calibration error, is sum over bins of num_nodes / all nodes * |predicted - observed|.

    `ece` has bins of equal width, of which the lowest holds most nodes; `ece_equal_counts` has as many bins of about
    equally many nodes each, and so weighs every range of probabilities by how often it occurs.
    """

    num_nodes: int
    # those that hold any node, lowest first
    bins: Sequence[ReliabilityBin]
    ece: float
    ece_equal_counts: float


def reliability(probs: NDArray[np.float64], accepted: NDArray[np.bool_], num_bins: int = NUM_BINS) -> Reliability:
    """`probs` and `accepted` [num_nodes]: predicted P(accepted | parent reached), and what came of it.

    Raises ValueError if there are no nodes or a probability is none.
    """
    if not len(probs):
        raise ValueError("no reached draft nodes to compare probabilities with")
    if not ((probs >= 0) & (probs <= 1)).all():
        raise ValueError(f"probabilities must lie in 0..1, not {probs.min()}..{probs.max()}")
    edges = np.arange(num_bins + 1) / num_bins
    places = np.minimum(np.searchsorted(edges, probs, side="right") - 1, num_bins - 1)
    bins = [
        ReliabilityBin(
            low=float(edges[place]),
            high=float(edges[place + 1]),
            num_nodes=int((places == place).sum()),
            predicted=float(probs[places == place].mean()),
            observed=float(accepted[places == place].mean()),
        )
        for place in np.unique(places).tolist()
    ]
    # Equal probabilities may fall into two bins: of such a tie the order is that of the nodes, not of the outcomes.
    order = np.argsort(probs, kind="stable")
    parts = [part for part in np.array_split(order, num_bins) if len(part)]
    return Reliability(
        num_nodes=len(probs),
        bins=tuple(bins),
        ece=sum(one.num_nodes * abs(one.predicted - one.observed) for one in bins) / len(probs),
        ece_equal_counts=sum(abs(float((probs[part] - accepted[part]).sum())) for part in parts) / len(probs),
    )
