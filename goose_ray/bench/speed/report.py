"""Results of `goose bench engine` as one JSON object, or as lines to read."""

from collections.abc import Callable, Sequence
from typing import Any

from goose_ray.bench.recordings import is_session
from goose_ray.bench.speed.speed_run import BenchmarkSpeed, Contender, ContenderSpeed

__all__ = ["speed_json", "speed_lines"]


def speed_json(contenders: Sequence[Contender], benchmarks: Sequence[BenchmarkSpeed]) -> dict[str, Any]:
    """`speedup` is over the first contender, of the second; with more, `against_first` has them all.

    The means leave out sessions, which stand among the benchmarks all the same, unless there is nothing else.
    """
    against = {contender.name: _means(benchmarks, index) for index, contender in enumerate(contenders) if index}
    return {
        "policies": [contender.name for contender in contenders],
        **(_means(benchmarks, 1) if len(contenders) > 1 else {}),
        "against_first": against,
        "equal": all(benchmark.equal for benchmark in benchmarks),
        "benchmarks": {benchmark.name: _benchmark(contenders, benchmark) for benchmark in benchmarks},
    }


def speed_lines(contenders: Sequence[Contender], benchmarks: Sequence[BenchmarkSpeed]) -> str:
    """A line for each benchmark and contender, then the means."""
    width = max(9, *(len(benchmark.name) for benchmark in benchmarks))
    names = max(len(contender.name) for contender in contenders)
    columns = f"{'tok/s':>7}  {'speedup':>7}  {'natural':>7}  {'repet.':>7}  {'tau':>5}  {'nodes':>6}"
    lines = [f"{'benchmark':{width}}  {'policy':{names}}  {columns}"]
    for benchmark in benchmarks:
        for index, (contender, speed) in enumerate(zip(contenders, benchmark.contenders, strict=True)):
            parts = (benchmark.part_speedup(index, "natural"), benchmark.part_speedup(index, "repetitive"))
            lines.append(
                f"{benchmark.name:{width}}  {contender.name:{names}}  {speed.tokens / speed.seconds:7.2f}  "
                f"{benchmark.speedup(index):7.2f}  {_or_dash(parts[0]):>7}  {_or_dash(parts[1]):>7}  "
                f"{speed.tau:5.2f}  {speed.nodes_per_step:6.1f}"
            )
        if not benchmark.equal:
            lines.append(f"{benchmark.name:{width}}  the replies are not equal")
    for index, contender in enumerate(contenders):
        if index:
            means = _means(benchmarks, index)
            lines.append(
                f"{'mean':{width}}  {contender.name:{names}}  {'':7}  {_or_dash(means['speedup']):>7}  "
                f"{_or_dash(means['natural']):>7}  {_or_dash(means['repetitive']):>7}"
            )
    return "\n".join(lines)


def _benchmark(contenders: Sequence[Contender], benchmark: BenchmarkSpeed) -> dict[str, Any]:
    def against(index: int) -> dict[str, Any]:
        return {
            "speedup": _rounded(benchmark.speedup(index)),
            "natural": _rounded(benchmark.part_speedup(index, "natural")),
            "repetitive": _rounded(benchmark.part_speedup(index, "repetitive")),
            "decoding_speedup": _rounded(benchmark.decoding_speedup(index)),
        }

    return {
        **(against(1) if len(contenders) > 1 else {}),
        "equal": benchmark.equal,
        "natural_requests": benchmark.num_of("natural"),
        "repetitive_requests": benchmark.num_of("repetitive"),
        "policies": {
            contender.name: {**_contender(speed), **(against(index) if index else {})}
            for index, (contender, speed) in enumerate(zip(contenders, benchmark.contenders, strict=True))
        },
    }


def _contender(speed: ContenderSpeed) -> dict[str, Any]:
    return {
        "tokens_per_second": _rounded(speed.tokens / speed.seconds),
        "seconds": _rounded(speed.seconds),
        "tokens": speed.tokens,
        "steps": speed.steps,
        "tau": _rounded(speed.tau),
        "nodes_per_step": _rounded(speed.nodes_per_step),
        "prediction_error": _rounded(speed.prediction_error),
    }


def _means(benchmarks: Sequence[BenchmarkSpeed], index: int) -> dict[str, float | None]:
    compared = [benchmark for benchmark in benchmarks if not is_session(benchmark.name)] or list(benchmarks)

    def mean(of: Callable[[BenchmarkSpeed], float | None]) -> float | None:
        values = [value for value in map(of, compared) if value is not None]
        return _rounded(sum(values) / len(values)) if values else None

    return {
        "speedup": mean(lambda benchmark: benchmark.speedup(index)),
        "natural": mean(lambda benchmark: benchmark.part_speedup(index, "natural")),
        "repetitive": mean(lambda benchmark: benchmark.part_speedup(index, "repetitive")),
        "decoding_speedup": mean(lambda benchmark: benchmark.decoding_speedup(index)),
        "least": min((_rounded(benchmark.speedup(index)) or 0.0 for benchmark in benchmarks), default=None),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
