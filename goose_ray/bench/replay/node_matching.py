"""Finds the budget at which a policy verifies a wanted number of nodes a step.

Policies do not spend exactly their budget: some extend confident drafts beyond it, others run out of candidates. They
are comparable at equal nodes *verified*. Knows nothing of what is measured but that it does not fall with the budget.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["NodeMatch", "match_budget"]

# Of the wanted number: closer than that the search stops.
_TOLERANCE = 0.005
_MAX_BUDGET = 1024
_MAX_RUNS = 14


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """The budget whose average came nearest."""

    wanted: float
    budget: int
    nodes: float
    # budget -> nodes verified a step, of every run of the search
    tried: Mapping[int, float]

    @property
    def reached(self) -> bool:
        """Within 5 %, or between two neighbouring budgets: then no budget is nearer."""
        near = abs(self.nodes - self.wanted) <= 0.05 * self.wanted
        return near or (min(self.tried.values()) <= self.wanted <= max(self.tried.values()))


def match_budget(nodes_at: Callable[[int], float], wanted: float) -> NodeMatch:
    """`nodes_at` measures the nodes verified a step at a budget. Of equally near budgets the smaller is taken."""
    tried: dict[int, float] = {}
    budget: int | None = max(1, round(wanted))
    while budget is not None and len(tried) < _MAX_RUNS:
        tried[budget] = nodes_at(budget)
        if abs(tried[budget] - wanted) <= _TOLERANCE * wanted:
            break
        budget = _next_budget(tried, wanted)
    nearest = min(sorted(tried), key=lambda tested: abs(tried[tested] - wanted))
    return NodeMatch(wanted, nearest, tried[nearest], tried)


def _next_budget(tried: Mapping[int, float], wanted: float) -> int | None:
    """None where no budget is left that could come nearer."""
    below = max((budget for budget, nodes in tried.items() if nodes < wanted), default=None)
    above = min((budget for budget, nodes in tried.items() if nodes > wanted), default=None)
    if below is None:
        assert above is not None
        return None if above == 1 else max(1, min(above - 1, int(above * wanted / tried[above])))
    if above is None:
        # A policy that spends no more at twice the budget has no more candidates.
        saturated = any(2 * budget <= below and nodes >= tried[below] for budget, nodes in tried.items())
        return None if saturated or below >= _MAX_BUDGET else min(2 * below, _MAX_BUDGET)
    if above - below <= 1:
        return None
    slope = (tried[above] - tried[below]) / (above - below)
    guess = below + round((wanted - tried[below]) / slope)
    if len(tried) > _MAX_RUNS // 2:
        guess = (below + above) // 2
    return min(max(guess, below + 1), above - 1)
