"""What the trees of a policy looked like and what became of them, over many steps.

*spine*: the path to the deepest node of a tree, of equally deep ones to the likeliest, of equally likely ones to the
first. *branches*: all other draft nodes. A chain is all spine; a fan is nearly all branches.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from goose.calibration import AcceptanceTable
from goose.sources.registry import SOURCE_NAMES
from goose.tree import IntArray, TokenTree
from goose_ray.bench.recordings import Benchmark
from goose_ray.bench.replay.reliability import Reliability, reliability

__all__ = ["SampledTree", "ShapeCounts", "StepStatistics", "spine_of"]

_NUM_SAMPLED_TREES = 3
# A smaller tree is not worth a drawing.
_MIN_DRAWN_NODES = 4


@dataclass(slots=True)
class ShapeCounts:
    """Draft nodes on spines and branches: verified, reached (the parent was accepted or is the anchor), accepted."""

    spine_nodes: int = 0
    spine_reached: int = 0
    spine_accepted: int = 0
    branch_nodes: int = 0
    branch_reached: int = 0
    branch_accepted: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SampledTree:
    """A step worth drawing."""

    benchmark: str
    tree: TokenTree
    # [num_accepted] int64, anchor excluded
    accepted_nodes: IntArray


@dataclass(slots=True, eq=False)
class StepStatistics:
    """A `StepLog` of `policy_run.py`. `trees` is a uniform sample of the steps with at least three draft nodes."""

    seed: int = 0
    # without, steps of sessions are not counted
    with_sessions: bool = False
    acceptance: AcceptanceTable = field(default_factory=lambda: AcceptanceTable(SOURCE_NAMES))
    shape: ShapeCounts = field(default_factory=ShapeCounts)
    trees: list[SampledTree] = field(default_factory=list)
    _probs: list[NDArray[np.float64]] = field(default_factory=list)
    _accepted: list[NDArray[np.bool_]] = field(default_factory=list)
    _num_drawable: int = 0
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def observe(self, benchmark: Benchmark, tree: TokenTree, accepted_nodes: IntArray) -> None:
        if benchmark.is_session and not self.with_sessions:
            return
        self.acceptance.observe(tree, accepted_nodes)
        on_path = np.zeros(tree.num_nodes, dtype=np.bool_)
        on_path[0] = True
        on_path[accepted_nodes] = True
        # The anchor's parent -1 reads the last entry; it is left out.
        reached = on_path[tree.parents]
        reached[0] = False
        self._count_shape(tree, on_path, reached)
        self._probs.append(tree.probs[reached].astype(np.float64))
        self._accepted.append(on_path[reached])
        if tree.num_nodes >= _MIN_DRAWN_NODES:
            self._sample(SampledTree(benchmark.name, tree, accepted_nodes))

    def reliability(self) -> Reliability | None:
        """None if the policy predicted nothing: all of its draft nodes have probability 1."""
        probs = np.concatenate([*self._probs, np.empty(0)])
        if (probs == 1.0).all():
            return None
        return reliability(probs, np.concatenate(self._accepted))

    def _count_shape(self, tree: TokenTree, on_path: NDArray[np.bool_], reached: NDArray[np.bool_]) -> None:
        spine = np.zeros(tree.num_nodes, dtype=np.bool_)
        spine[spine_of(tree)] = True
        branch = ~spine
        branch[0] = False
        shape = self.shape
        shape.spine_nodes += int(spine.sum())
        shape.spine_reached += int((spine & reached).sum())
        shape.spine_accepted += int((spine & on_path).sum())
        shape.branch_nodes += int(branch.sum())
        shape.branch_reached += int((branch & reached).sum())
        shape.branch_accepted += int((branch & on_path).sum())

    def _sample(self, candidate: SampledTree) -> None:
        """Reservoir sampling: every candidate so far has had the same chance to be kept."""
        self._num_drawable += 1
        if len(self.trees) < _NUM_SAMPLED_TREES:
            self.trees.append(candidate)
        elif (place := int(self._rng.integers(self._num_drawable))) < _NUM_SAMPLED_TREES:
            self.trees[place] = candidate


def spine_of(tree: TokenTree) -> list[int]:
    """The spine's nodes, anchor excluded, parent before child; empty without draft nodes."""
    deepest = np.flatnonzero(tree.depths == tree.depths.max())
    if len(deepest) > 1:
        deepest = deepest[np.argmax(tree.path_probs()[deepest]), None]
    return tree.path_to(int(deepest[0]))
