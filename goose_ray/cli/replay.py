"""`goose replay`: policies side by side on recorded replies, without a model."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goose.errors import InvalidSnapshotError
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.many_values import ManyValuesCommand
from goose_ray.cli.options import json_option
from goose_ray.errors import ConfigError

if TYPE_CHECKING:
    from goose.anisotropic.calibration_file import CalibrationFile
    from goose_ray.bench.replay.study import Study

__all__ = ["replay"]

_PATH = click.Path(exists=True, path_type=Path)


@click.command(cls=ManyValuesCommand)
@click.option(
    "--recordings", "paths", type=_PATH, multiple=True, required=True, help="Folders or files of `goose record`."
)
@click.option("--policy", "policies", multiple=True, help="Tree policies; default: all, anisotropic first.")
@click.option(
    "--nodes",
    multiple=True,
    type=FiniteRange(min=1),
    default=(16, 32, 60),
    show_default=True,
    help="Nodes to verify per step on average, anchor included.",
)
@click.option("--subject", help="The policy to compare the others with; default: the first.")
@click.option("--after", type=_PATH, multiple=True, help="Recordings that every policy serves before each benchmark.")
@click.option(
    "--calibration", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="That anisotropic starts from."
)
@click.option("--warm", default=0, show_default=True, type=click.IntRange(min=0), help="Replies of others first.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of order and bootstrap.")
@click.option("--stop-token-id", "stop_ids", multiple=True, type=int, help="Token ids that no draft runs past.")
@click.option(
    "--prompts/--no-prompts",
    "harvest_prompts",
    default=True,
    show_default=True,
    help="Whether policies learn the target's successors after prompt tokens, as where few requests share a step.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the report.")
@json_option
def replay(
    paths: tuple[Path, ...],
    policies: tuple[str, ...],
    nodes: tuple[float, ...],
    subject: str | None,
    after: tuple[Path, ...],
    calibration: Path | None,
    warm: int,
    seed: int,
    stop_ids: tuple[int, ...],
    harvest_prompts: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare policies on recorded replies at equal numbers of verified nodes.

    For each policy the budget is sought at which it verifies the wanted nodes per step over the recordings; a policy
    that cannot (a chain has no 60 candidates) takes what comes nearest, and is marked.

    A recording's benchmark is its field `benchmark`, else its file's name up to `__` or to the id. Every benchmark
    starts with nothing learned, or, the same for every policy, after the recordings of --after and, with --warm N,
    after N replies of other benchmarks.
    Sessions (agentic_sessions, support_sessions) stand apart from the averages.

    With --no-prompts, policies that can do without learn nothing from prompt rows, as the engine has it from four
    requests in a step on.

    --out writes report.md with plots as PNG, and report.json, which is what --json prints.

    \b
    goose replay --recordings recordings --policy anisotropic goose chain --nodes 16 32 60
    goose replay --recordings recordings --out report
    """
    from goose.policies.registry import POLICIES, calibrated
    from goose_ray.bench.recordings import read_benchmarks, read_recordings
    from goose_ray.bench.replay.policy_run import ReplayPlan
    from goose_ray.bench.replay.study import study
    from goose_ray.bench.replay.study_json import study_json, study_lines

    write = None if out is None else _writer(out)
    benchmarks = read_benchmarks(paths, seed=seed)
    plan = ReplayPlan(
        benchmarks=tuple(benchmarks),
        before=tuple(recording for _, recording in read_recordings(after)),
        warm=warm,
        seed=seed,
        stop_token_ids=frozenset(stop_ids),
        harvest_prompts=harvest_prompts,
        builders=POLICIES if calibration is None else calibrated(_read(calibration)),
    )
    # A chain of one node is plain decoding: it has a tau of 1 at any budget.
    chosen = policies or ("anisotropic", *(name for name in POLICIES if name not in ("anisotropic", "autoregressive")))
    with _progress() as on_run:
        result = study(plan, list(dict.fromkeys(chosen)), list(dict.fromkeys(nodes)), subject=subject, on_run=on_run)
    if write is not None:
        write(result)
    click.echo(json.dumps(study_json(result), indent=2) if as_json else study_lines(result))


def _writer(folder: Path) -> "Callable[[Study], None]":
    """Asked for before the runs: what it needs may not be installed."""
    try:
        from goose_ray.bench.replay.report import write_report
    except ModuleNotFoundError as error:
        raise ConfigError(f"--out needs {error.name}: pip install 'goose-ray[report]'") from error
    return lambda result: write_report(result, folder)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Gives what is told of every run that is done: how many there will be shows only then."""
    from tqdm import tqdm

    with tqdm(desc="replay", unit="run", disable=not sys.stderr.isatty()) as bar:

        def count(what: str) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update()

        yield count


def _read(calibration: Path) -> "CalibrationFile":
    from goose.anisotropic.calibration_file import CalibrationFile

    try:
        return CalibrationFile.load(calibration)
    except InvalidSnapshotError as error:
        raise ConfigError(f"--calibration: {error}; name a file that `goose calibrate` wrote") from error
