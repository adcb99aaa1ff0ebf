"""Calibrates `anisotropic` to recorded replies, and tells on other replies what that was worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.fitting import NUM_PASSES, fit, known_texts
from goose.anisotropic.known_texts import KnownTexts
from goose.anisotropic.weights import Weights
from goose.policies.registry import calibrated
from goose_ray.bench.recordings import Benchmark
from goose_ray.bench.replay.bootstrap import tau_of
from goose_ray.bench.replay.policy_run import ReplayPlan
from goose_ray.bench.replay.step_statistics import StepStatistics
from goose_ray.errors import ConfigError

__all__ = ["NUM_PASSES", "Calibration", "HeldOut", "calibrate", "split"]

_POLICY = "anisotropic"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What a start comes to on replies that were not fitted. `tau` is the mean over benchmarks."""

    tau: float
    nodes_per_step: float
    # expected calibration error, in bins of equal width; None where no draft node was reached
    ece: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """`before` and `after` are None if nothing was held out."""

    file: CalibrationFile
    num_fitted: int
    num_held_out: int
    before: HeldOut | None
    after: HeldOut | None


def calibrate(
    benchmarks: Sequence[Benchmark],
    *,
    held_out: float,
    budget: int,
    seed: int,
    stop_token_ids: frozenset[int],
    start: Weights,
    keep_texts: bool = True,
    on_reply: Callable[[], object] = lambda: None,
) -> Calibration:
    """Fits `start` to all replies but a share `held_out` of them, on which both are tried.

    `keep_texts`: the replies that were fitted are remembered as well.

    Raises ConfigError if nothing would be left to fit.
    """
    fitted, kept = split(benchmarks, held_out, seed)
    if not fitted:
        raise ConfigError(f"held_out ({held_out:g}) leaves none of the recordings to fit: use less, or record more")
    recordings = [reply.recording for benchmark in fitted for reply in benchmark.replies]
    weights = fit(
        recordings,
        stop_token_ids=stop_token_ids,
        budget=budget,
        seed=seed,
        start=start,
        remembering=keep_texts,
        on_reply=on_reply,
    )
    file = CalibrationFile(weights, known_texts(recordings) if keep_texts else KnownTexts.none())
    tried = {
        name: _try(ReplayPlan(benchmarks=kept, stop_token_ids=stop_token_ids, builders=calibrated(own)), budget)
        for name, own in (("before", CalibrationFile(start)), ("after", file))
        if kept
    }
    num_held_out = sum(len(benchmark.replies) for benchmark in kept)
    return Calibration(file, len(recordings), num_held_out, tried.get("before"), tried.get("after"))


def split(
    benchmarks: Sequence[Benchmark], share: float, seed: int
) -> tuple[tuple[Benchmark, ...], tuple[Benchmark, ...]]:
    """The replies to fit and those to hold out, drawn by the seed over all benchmarks, their order kept."""
    total = sum(len(benchmark.replies) for benchmark in benchmarks)
    chosen = np.zeros(total, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(total)[: round(share * total)]] = True
    parts: tuple[list[Benchmark], list[Benchmark]] = ([], [])
    first = 0
    for benchmark in benchmarks:
        own = chosen[first : first + len(benchmark.replies)]
        first += len(benchmark.replies)
        for part, wanted in zip(parts, (False, True), strict=True):
            if replies := tuple(reply for reply, held in zip(benchmark.replies, own, strict=True) if held == wanted):
                part.append(Benchmark(benchmark.name, replies))
    return tuple(parts[0]), tuple(parts[1])


def _try(plan: ReplayPlan, budget: int) -> HeldOut:
    statistics = StepStatistics(plan.seed, with_sessions=True)
    run = plan.run(_POLICY, budget, statistics)
    reliability = statistics.reliability()
    return HeldOut(
        tau=float(np.mean([tau_of(results) for results in run.results.values()])),
        nodes_per_step=run.nodes_per_step(list(run.results)),
        ece=None if reliability is None else reliability.ece,
    )
