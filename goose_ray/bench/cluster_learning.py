"""What shared learning is worth, on recorded replies and without a model: for a new replica, and when traffic changes.

*Start*: replicas have served one half of the replies. A new one serves the others, from nothing or from what the
cluster offers, and is compared reply by reply with one that had served that half itself. *Drift*: replicas serve code,
then conversations, tuned by the counts of all, by their own, by those before the change, or not at all. Knows nothing
of Ray.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.weights import Weights
from goose.policies.anisotropic import AnisotropicConstants, AnisotropicPolicy
from goose.policies.base import TreePolicy
from goose.replay import Recording, ReplayResult, replay
from goose.sources.registry import SourceSet
from goose.speculator import Speculator
from goose.tuning import TreeTuning, solve
from goose.tuning_counts import TuningCounts
from goose_ray.telemetry.starting_point import StartingPoint, joined_start, united
from goose_ray.telemetry.warm_starts import LearnedWeights, Offer, WarmStarts

__all__ = ["DRIFT_MODES", "Drift", "Start", "run_drift", "run_start"]

DriftMode = Literal["shared", "own", "frozen", "none"]
DRIFT_MODES: tuple[DriftMode, ...] = ("shared", "own", "frozen", "none")
# Replies whose steps are compared with the reference at a time, and the part of its tau that counts as steady.
_WINDOW, _STEADY = 8, 0.95
# What a new replica is offered: tokens of a replica's texts, and the texts of so many replicas.
_SHARED_TOKENS, _TEXTS = 65536, 4
# What is left of a count after a reply more of each replica: a few replies are remembered.
_KEPT = 0.9


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
class Drift:
    """Taus of the replicas together: before the change, in the first quarter after it, in all that came after."""

    mode: DriftMode
    learning_rate: float
    tau_before: float
    tau_first: float
    tau_after: float


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
    mode: DriftMode,
    learning_rate: float = 0.05,
) -> Drift:
    """`learning_rate` 0: replicas whose weights stay what they are, so that all they adapt to is the tuning."""
    rng = np.random.default_rng(seed)
    first, second = ([part[place] for place in rng.permutation(len(part)).tolist()] for part in (before, after))
    fleet = [_Tuned(budget, learning_rate) for _ in range(replicas)]
    results: list[list[ReplayResult]] = []
    tuning = TreeTuning()
    for phase, recordings in enumerate((first, second)):
        results.append([])
        for number, recording in enumerate(recordings):
            one = fleet[number % replicas]
            if mode == "shared" or (mode == "frozen" and phase == 0):
                others = sum((other.recent for other in fleet if other is not one), TuningCounts.none())
                tuning = solve([TuningCounts.none(), others, one.recent])
            elif mode == "own":
                tuning = solve([one.recent])
            if mode != "none":
                one.speculator.tune(tuning)
            results[-1].append(one.serve(recording))
    early = results[1][: max(1, len(results[1]) // 4)]
    return Drift(mode, learning_rate, _tau(results[0]), _tau(early), _tau(results[1]))


class _Tuned:
    """A replica, and its counts weighted by age."""

    def __init__(self, budget: int, learning_rate: float) -> None:
        self.speculator = _speculator(budget, learning_rate=learning_rate)
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
    """Both committed the same tokens, so their steps tell how their taus compare."""
    steps, wanted = (np.array([result.steps for result in each]) for each in (results, steady))
    width = min(_WINDOW, len(steps))
    windows = np.ones(width)
    is_steady = np.convolve(wanted, windows, "valid") >= _STEADY * np.convolve(steps, windows, "valid")
    slow = np.flatnonzero(~is_steady)
    first = 0 if not len(slow) else int(slow[-1]) + 1
    reached = None if first == len(is_steady) else int(steps[:first].sum())
    return Start(name, _tau(results), _tau(steady), reached, int(steps.sum()))


def _tau(results: Sequence[ReplayResult]) -> float:
    return sum(result.committed for result in results) / sum(result.steps for result in results)
