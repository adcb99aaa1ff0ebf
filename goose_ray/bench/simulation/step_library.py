"""Recorded steps of one kind of traffic, for simulating many replicas: what each would commit under any tuning.

A step is a tree of the real policy, wider than what is verified, and what the target accepted of it. A tuning moves its
probabilities as it moves the policy's (`goose.anisotropic.model`), and the likeliest nodes within the budget are what a
replica verifies. Which steps follow one another does not depend on that here, as it would in a reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from goose.calibration import DEPTH_EDGES, RANK_EDGES, AcceptanceTable
from goose.replay import Recording, replay
from goose.sources.registry import SOURCE_NAMES
from goose.speculator import Speculator
from goose.tree import IntArray, TokenTree
from goose.tuning import TreeTuning
from goose.tuning_counts import GROUPS, TuningCounts

__all__ = ["Outcomes", "StepLibrary"]

# Nodes of a recorded tree, of which the budget of a simulated replica is a part.
_RECORDED_NODES = 60
_BITS = tuple(1 << SOURCE_NAMES.index(name) for name in GROUPS)
# Tunings this close build nearly the same trees; replicas that nearly agree share what is worked out of them.
_OFFSET_GRID, _TEMPERATURE_GRID = 0.1, 0.05
_LEAST = 1e-6
_NUM_POSITIONS = len(AcceptanceTable().accepted_per_position())
_SOURCE_SHAPE = (2, len(DEPTH_EDGES), len(RANK_EDGES))


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Of each step of a library under one tuning; the rows of many steps add up."""

    # [num_steps] int64: tokens committed, bonus included
    committed: NDArray[np.int64]
    # [num_steps, num_counts] float64, so that they are summed fast: what `AcceptanceTable` counts, places and sources
    counts: NDArray[np.float64]
    # [num_steps, num_groups, num_depths, num_sums] float64: what `TuningCounts` sums
    sums: NDArray[np.float64]

    def table(self, times: NDArray[np.int64]) -> AcceptanceTable:
        """What is counted when step i comes `times[i]` times."""
        total = (times @ self.counts[: len(times)]).astype(np.int64)
        sources = total[2 * _NUM_POSITIONS :].reshape(len(SOURCE_NAMES), *_SOURCE_SHAPE)
        return AcceptanceTable.from_snapshot(
            {
                "depth_edges": list(DEPTH_EDGES),
                "rank_edges": list(RANK_EDGES),
                "positions": total[: 2 * _NUM_POSITIONS].reshape(2, _NUM_POSITIONS),
                "sources": dict(zip(SOURCE_NAMES, sources, strict=True)),
            }
        )


class StepLibrary:
    """`steps` are trees with their accepted nodes; `budget` nodes of each are verified, anchor included."""

    def __init__(self, steps: Sequence[tuple[TokenTree, IntArray]], *, budget: int) -> None:
        self._steps = steps
        self._budget = budget
        self._known: dict[tuple[int, ...], Outcomes] = {}

    def __len__(self) -> int:
        return len(self._steps)

    @classmethod
    def record(
        cls, recordings: Sequence[Recording], *, budget: int, size: int, seed: int, misjudged: float = 0.0
    ) -> "StepLibrary":
        """Up to `size` steps of a speculator that serves the recordings in turn, drawn at random.

        `misjudged` is added to the log-odds of nodes copied from the request's own text: a model that is wrong by so
        much, as when the target has been replaced.
        """
        steps: list[tuple[TokenTree, IntArray]] = []
        speculator = Speculator(policy="anisotropic", budget=_RECORDED_NODES)
        for recording in recordings:
            replay(recording, speculator, on_step=lambda tree, nodes: steps.append((tree, nodes)))
        chosen = np.sort(np.random.default_rng(seed).permutation(len(steps))[:size]).tolist()
        wrong = TreeTuning(offsets=(misjudged, *(0.0,) * (len(GROUPS) - 1)))
        return cls([(_tuned(steps[place][0], wrong), steps[place][1]) for place in chosen], budget=budget)

    def outcomes(self, tuning: TreeTuning) -> Outcomes:
        """Worked out once for tunings that hardly differ."""
        cell = (*(round(o / _OFFSET_GRID) for o in tuning.offsets), round(tuning.temperature / _TEMPERATURE_GRID))
        if cell not in self._known:
            *offsets, temperature = cell
            snapped = TreeTuning(
                offsets=tuple(_OFFSET_GRID * offset for offset in offsets), temperature=_TEMPERATURE_GRID * temperature
            )
            self._known[cell] = self._outcomes(snapped)
        return self._known[cell]

    def counts(self) -> TuningCounts:
        """Of all its steps, untuned."""
        return TuningCounts(self.outcomes(TreeTuning()).sums.sum(axis=0), float(len(self)))

    def _outcomes(self, tuning: TreeTuning) -> Outcomes:
        committed, counts, sums = [], [], []
        offsets, temperatures = np.array([tuning.offsets]), np.array([tuning.temperature])
        for tree, accepted in self._steps:
            verified, path = _verified(_tuned(tree, tuning), accepted, self._budget)
            table = AcceptanceTable(SOURCE_NAMES)
            table.observe(verified, path)
            committed.append(len(path) + 1)
            places = (table.attempted_per_position(), table.accepted_per_position())
            counts.append(np.concatenate([*places, *(table.counts(name).ravel() for name in SOURCE_NAMES)]))
            counted = TuningCounts.of([verified], [path], bits=_BITS, offsets=offsets, temperatures=temperatures)
            sums.append(counted.sums)
        return Outcomes(np.array(committed), np.stack(counts).astype(np.float64), np.stack(sums))


def _tuned(tree: TokenTree, tuning: TreeTuning) -> TokenTree:
    """With the probabilities of the tuned model, in which siblings and whatever was not drafted share the odds."""
    p = np.clip(tree.probs.astype(np.float64), _LEAST, 1 - _LEAST)
    p[0] = 0.0
    parents = np.maximum(tree.parents, 0)
    rest = np.maximum(1 - np.bincount(parents, weights=p, minlength=tree.num_nodes), _LEAST)
    groups = np.where(tree.sources & _BITS[0], 0, np.where(tree.sources & _BITS[1], 1, 2))
    logits = np.log(np.maximum(p, _LEAST) / rest[parents])
    odds = np.exp(tuning.temperature * (logits + np.array(tuning.offsets)[groups]))
    odds[0] = 0.0
    total = 1 + np.bincount(parents, weights=odds, minlength=tree.num_nodes)
    probs = (odds / total[parents]).astype(np.float32)
    probs[0] = 1.0
    return replace(tree, probs=probs)


def _verified(tree: TokenTree, accepted: IntArray, budget: int) -> tuple[TokenTree, IntArray]:
    """The likeliest nodes, and what of the accepted path is among them."""
    if tree.num_nodes <= budget:
        return tree, accepted
    kept = np.sort(np.argsort(-tree.path_probs(), kind="stable")[:budget])
    places = np.searchsorted(kept, accepted)
    is_kept = kept[np.minimum(places, len(kept) - 1)] == accepted
    return tree.only(kept), places[is_kept].astype(np.int64)
