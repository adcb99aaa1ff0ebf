"""What shared learning is worth, on recorded replies and without a model: for a new replica, and when traffic changes.

*Start*: replicas have served one half of the replies. A new one serves the others, from nothing or from what the
cluster offers, and is compared reply by reply with one that had served that half itself. *Drift*: replicas serve code,
then one half of the conversations, tuned by the counts of all, by their own, by those before the change, or not at
all, and are compared with replicas that had served the other half before. Knows nothing of Ray.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.features import AT_SUPPORT
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.weights import Weights
from goose.policies.anisotropic import AnisotropicConstants, AnisotropicPolicy
from goose.policies.base import TreePolicy
from goose.replay import Recording, ReplayResult, replay
from goose.sources.registry import SourceSet
from goose.speculator import Speculator
from goose.tuning import TreeTuning, solve
from goose.tuning_counts import TuningCounts
from goose_ray.bench.replay.bootstrap import tau_of
from goose_ray.telemetry.starting_point import StartingPoint, joined_start, united
from goose_ray.telemetry.warm_starts import LearnedWeights, Offer, WarmStarts

__all__ = ["DRIFT_MODES", "LEARNING_RATES", "Drift", "DriftPoint", "Start", "run_drift", "run_start"]

DriftMode = Literal["shared", "own", "frozen", "none"]
DRIFT_MODES: tuple[DriftMode, ...] = ("shared", "own", "frozen", "none")
# Weights as they are in service, and held still: then tuning, and what a request adapts of itself, is all that follows.
LEARNING_RATES = (0.05, 0.0)
# Replies whose steps are compared with the reference at a time, and the part of its tau that counts as steady.
_WINDOW, _STEADY = 8, 0.95
# What a new replica is offered: tokens of a replica's texts, and the texts of so many replicas.
_SHARED_TOKENS, _TEXTS = 65536, 4
_PARTS = ("early", "late", "steady")
# What is left of a count after a reply more of each replica: a few replies are remembered.
_KEPT = 0.9
# Weights of the classes that are copied from a request's own text: strongly, less so, hardly supported.
_OWN_TEXT = slice(AT_SUPPORT, AT_SUPPORT + 3)


@dataclass(frozen=True, slots=True)
class Start:
    """`name`: what the new replica starts from. Taus are committed tokens / steps, over all replies."""

    name: str
    tau: float
    steady_tau: float
    # steps until windows of replies reach 95 % of the steady tau for good; None: never
    steps_to_steady: int | None
    steps: int


@dataclass(frozen=True, slots=True)
class DriftPoint:
    """A few replies: committed tokens / steps, and how many steps the replicas together have made since the change."""

    # below 0 before it
    steps: int
    tau: float


@dataclass(frozen=True, slots=True)
class Drift:
    """Taus of the replicas together: before the change, in the first quarter after it, in all that came after."""

    mode: DriftMode
    learning_rate: float
    tau_before: float
    tau_first: float
    tau_after: float
    # of replicas that had served such traffic before
    steady_tau: float
    # steps of the replicas together until windows of replies reach 95 % of the steady tau for good, the median over the
    # orders of the replies; None: not in half of them or more
    steps_to_steady: int | None
    # steps after the change over those of the mode "shared": above 1 is slower
    steps_ratio: float
    # log-odds by group that the counts of all replicas ask for, before the change and at the end
    asked_before: tuple[float, ...]
    asked_after: tuple[float, ...]
    timeline: tuple[DriftPoint, ...]


def run_start(recordings: Sequence[Recording], *, replicas: int, budget: int, seed: int) -> list[Start]:
    """From nothing, from the cluster's weights, and from its weights and texts."""
    order = np.random.default_rng(seed).permutation(len(recordings)).tolist()
    past = [recordings[place] for place in order[: len(order) // 2]]
    served = [recordings[place] for place in order[len(order) // 2 :]]
    veterans = [_speculator(budget) for _ in range(replicas)]
    for number, recording in enumerate(past):
        replay(recording, veterans[number % replicas])
    offers = [offer for veteran in veterans if (offer := veteran.learned(_SHARED_TOKENS)) is not None]
    offered = WarmStarts()
    for number, offer in enumerate(offers):
        offered.publish(Offer(str(number), "", LearnedWeights(offer.weights.values, offer.weights.squares)))
    weights = offered.start("").weights
    reference = _speculator(budget)
    for recording in past:
        replay(recording, reference)
    steady = [replay(recording, reference) for recording in served]
    starts = {
        "nothing": None,
        "weights": StartingPoint(weights, KnownTexts.none()),
        "weights and texts": StartingPoint(weights, united([offer.texts for offer in offers[:_TEXTS]])),
    }
    found = []
    for name, start in starts.items():
        fresh = _speculator(budget, None if start is None else joined_start(None, start))
        found.append(_start(name, [replay(recording, fresh) for recording in served], steady))
    return found


def run_drift(
    before: Sequence[Recording],
    after: Sequence[Recording],
    *,
    replicas: int,
    budget: int,
    seed: int,
    learning_rate: float,
    orders: int = 1,
    misjudged: float = 0.0,
) -> list[Drift]:
    """One a mode, over `orders` orders of the replies. `learning_rate` 0 holds weights still.

    `misjudged` is added to the log-odds of copies of a request's own text: weights that are wrong by so much from the
    start. A tuning frozen when they were right is then none.
    """
    runs: dict[DriftMode, list[_Order]] = {mode: [] for mode in DRIFT_MODES}
    for order in range(orders):
        rng = np.random.default_rng([seed, order])
        first, second = ([part[place] for place in rng.permutation(len(part)).tolist()] for part in (before, after))
        held, served = second[: len(second) // 2], second[len(second) // 2 :]

        def fleet(mode: DriftMode) -> _Fleet:
            return _Fleet(mode, [_Tuned(budget, learning_rate, misjudged) for _ in range(replicas)])

        reference = fleet("shared")
        reference.serve(held)
        steady = reference.serve(served)
        for mode, found in runs.items():
            one = fleet(mode)
            early, asked_before = one.serve(first), one.asked()
            late = one.serve(served, is_frozen=mode == "frozen")
            found.append(_Order(early, late, steady, asked_before, one.asked()))
    shared = sum(order.steps for order in runs["shared"])
    return [_drift(mode, learning_rate, found, shared) for mode, found in runs.items()]


@dataclass(frozen=True, slots=True)
class _Order:
    """Results of one order of the replies: before the change, after it, and what replicas used to it made of those."""

    early: list[ReplayResult]
    late: list[ReplayResult]
    steady: list[ReplayResult]
    asked_before: TreeTuning
    asked_after: TreeTuning

    @property
    def steps(self) -> int:
        return sum(result.steps for result in self.late)


class _Fleet:
    """Serves replies in turn, each replica tuned before each of its own."""

    def __init__(self, mode: DriftMode, replicas: "list[_Tuned]") -> None:
        self._mode = mode
        self._replicas = replicas
        self._num_served = 0

    def serve(self, recordings: Sequence[Recording], *, is_frozen: bool = False) -> list[ReplayResult]:
        results = []
        for recording in recordings:
            one = self._replicas[self._num_served % len(self._replicas)]
            self._num_served += 1
            if self._mode != "none" and not is_frozen:
                levels = [TuningCounts.none(), self._counts(but=one)] if self._mode != "own" else []
                one.speculator.tune(solve([*levels, one.recent]))
            results.append(one.serve(recording))
        return results

    def asked(self) -> TreeTuning:
        """What the counts of all ask for."""
        return solve([self._counts()])

    def _counts(self, *, but: "_Tuned | None" = None) -> TuningCounts:
        return sum((one.recent for one in self._replicas if one is not but), TuningCounts.none())


class _Tuned:
    """A replica, and its counts weighted by age."""

    def __init__(self, budget: int, learning_rate: float, misjudged: float) -> None:
        weights = Weights.prior()
        values = weights.values.copy()
        values[_OWN_TEXT] += misjudged
        start = CalibrationFile(replace(weights, values=values))
        self.speculator = _speculator(budget, start, learning_rate=learning_rate)
        self.recent = self._read = TuningCounts.none()

    def serve(self, recording: Recording) -> ReplayResult:
        result = replay(recording, self.speculator)
        counts = self.speculator.tuning_counts()
        self.recent = self.recent * _KEPT + (counts - self._read)
        self._read = counts
        return result


def _speculator(budget: int, start: CalibrationFile | None = None, *, learning_rate: float = 0.05) -> Speculator:
    def build(sources: SourceSet) -> TreePolicy:
        file = start or CalibrationFile(Weights.prior())
        constants = AnisotropicConstants(learning_rate=learning_rate)
        return AnisotropicPolicy(sources, weights=file.weights, texts=file.texts, constants=constants)

    return Speculator(policy="anisotropic", budget=budget, builders={"anisotropic": build})


def _start(name: str, results: Sequence[ReplayResult], steady: Sequence[ReplayResult]) -> Start:
    steps = sum(result.steps for result in results)
    return Start(name, tau_of(results), tau_of(steady), _steps_to_steady(results, steady), steps)


def _steps_to_steady(results: Sequence[ReplayResult], steady: Sequence[ReplayResult]) -> int | None:
    """Both committed the same tokens, so their steps tell how their taus compare."""
    steps, wanted = (np.array([result.steps for result in each]) for each in (results, steady))
    windows = np.ones(min(_WINDOW, len(steps)))
    is_steady = np.convolve(wanted, windows, "valid") >= _STEADY * np.convolve(steps, windows, "valid")
    slow = np.flatnonzero(~is_steady)
    first = 0 if not len(slow) else int(slow[-1]) + 1
    return None if first == len(is_steady) else int(steps[:first].sum())


def _drift(mode: DriftMode, learning_rate: float, orders: Sequence[_Order], shared_steps: int) -> Drift:
    early, late, steady = ([result for order in orders for result in getattr(order, part)] for part in _PARTS)
    first = [result for order in orders for result in order.late[: max(1, len(order.late) // 4)]]
    reached = sorted(steps for order in orders if (steps := _steps_to_steady(order.late, order.steady)) is not None)
    middle = len(orders) // 2
    return Drift(
        mode=mode,
        learning_rate=learning_rate,
        tau_before=tau_of(early),
        tau_first=tau_of(first),
        tau_after=tau_of(late),
        steady_tau=tau_of(steady),
        steps_to_steady=reached[middle] if middle < len(reached) else None,
        steps_ratio=sum(order.steps for order in orders) / shared_steps,
        asked_before=_mean_offsets([order.asked_before for order in orders]),
        asked_after=_mean_offsets([order.asked_after for order in orders]),
        timeline=(*_points([order.early for order in orders], -1), *_points([order.late for order in orders], 1)),
    )


def _points(orders: Sequence[Sequence[ReplayResult]], sign: int) -> list[DriftPoint]:
    """Of windows of replies that follow one another, all orders together; `sign` -1 counts steps back from the end."""
    points, length = [], len(orders[0])
    for start in range(0, length, _WINDOW):
        shown = [result for order in orders for result in order[start : start + _WINDOW]]
        past = [result for order in orders for result in (order[:start] if sign > 0 else order[start:])]
        half = sum(result.steps for result in shown) / 2
        steps = sign * sum(result.steps for result in past) + half
        points.append(DriftPoint(round(steps / len(orders)), tau_of(shown)))
    return points


def _mean_offsets(tunings: Sequence[TreeTuning]) -> tuple[float, ...]:
    return tuple(np.mean([tuning.offsets for tuning in tunings], axis=0).round(3).tolist())
