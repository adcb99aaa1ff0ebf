"""`goose calibrate`: a file fitted to replies, what it is worth on others, and a deployment that names it."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fakes import FakeRunner, FakeTokenizer, looping_model
from recording_builders import looping_recording, make_recording, random_recording, save_recording

import goose_ray.assembly
from goose.anisotropic.calibration_file import CalibrationFile
from goose.anisotropic.features import NUM_WEIGHTS
from goose.anisotropic.fitting import NUM_PASSES
from goose.anisotropic.weights import Weights
from goose.errors import InvalidSnapshotError
from goose.policies.anisotropic import AnisotropicPolicy
from goose.policies.registry import calibrated
from goose.speculator import Speculator
from goose_ray.assembly import ReplicaParts, build_engine
from goose_ray.bench.recordings import Benchmark, RecordedReply
from goose_ray.bench.replay.calibrate import calibrate, split
from goose_ray.cli.main import main
from goose_ray.config import GooseConfig
from goose_ray.errors import ConfigError

BENCHMARKS = [
    Benchmark("loops", tuple(RecordedReply(looping_recording(f"l{n}", period=n), True) for n in range(3, 9))),
    Benchmark("plain", tuple(RecordedReply(random_recording(f"p{n}", seed=n), False) for n in range(4))),
]


def goose_calibrate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for benchmark in BENCHMARKS:
        for number, reply in enumerate(benchmark.replies):
            recording = reply.recording
            prompt, output = recording.prompt_ids.tolist(), recording.output_ids.tolist()
            save_recording(make_recording(f"{benchmark.name}_{number}", prompt, output), recordings)
    return recordings


def test_replies_are_fitted_or_held_out_and_never_both() -> None:
    fitted, kept = split(BENCHMARKS, 0.3, seed=1)
    names = [[reply.recording.name for one in part for reply in one.replies] for part in (fitted, kept)]
    assert len(names[1]) == 3
    everything = [reply.recording.name for one in BENCHMARKS for reply in one.replies]
    assert sorted(names[0] + names[1]) == sorted(everything)
    assert split(BENCHMARKS, 0.0, seed=1)[1] == ()
    assert [reply.recording.name for one in split(BENCHMARKS, 0.3, seed=2)[1] for reply in one.replies] != names[1]


def test_fitting_from_nothing_learns_to_draft() -> None:
    calls: list[int] = []
    found = calibrate(
        BENCHMARKS,
        held_out=0.3,
        budget=8,
        seed=1,
        stop_token_ids=frozenset(),
        start=Weights.zero(),
        on_reply=lambda: calls.append(1),
    )
    assert (found.num_fitted, found.num_held_out, len(calls)) == (7, 3, 7 * NUM_PASSES)
    assert found.before is not None
    assert found.after is not None
    assert found.after.tau > 1.2 * found.before.tau
    assert found.after.ece is not None
    assert np.abs(found.file.weights.values).max() > 0.1


def test_nothing_held_out_is_nothing_tried() -> None:
    found = calibrate(BENCHMARKS[:1], held_out=0.0, budget=8, seed=0, stop_token_ids=frozenset(), start=Weights.prior())
    assert (found.num_held_out, found.before, found.after) == (0, None, None)


def test_something_must_be_left_to_fit() -> None:
    one = Benchmark("one", BENCHMARKS[0].replies[:1])
    with pytest.raises(ConfigError, match=r"held_out \(0\.9\) leaves none"):
        calibrate([one], held_out=0.9, budget=8, seed=0, stop_token_ids=frozenset(), start=Weights.zero())


def test_the_command_writes_a_file_that_a_speculator_starts_from(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.npz"
    done = goose_calibrate("--recordings", folder, "--out", out, "--from-nothing", "--held-out", "0.3", "--json")
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)
    assert (row["replies_fitted"], row["replies_held_out"]) == (7, 3)
    assert row["after"]["tau"] > row["before"]["tau"]
    weights = Weights.load(out)
    policies: list[AnisotropicPolicy] = []

    def remember(policy: object) -> AnisotropicPolicy:
        assert isinstance(policy, AnisotropicPolicy)
        policies.append(policy)
        return policy

    file = CalibrationFile.load(out)
    assert len(file.texts) == 7
    build = calibrated(file)["anisotropic"]
    Speculator(policy="anisotropic", builders={"anisotropic": lambda sources: remember(build(sources))})
    assert np.array_equal(policies[0].weights.values, weights.values)
    assert not np.array_equal(weights.values, Weights.prior().values)


def test_a_file_without_texts(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "weights.npz"
    done = goose_calibrate("--recordings", folder, "--out", out, "--weights-only", "--json")
    assert done.exit_code == 0, done.output
    assert len(CalibrationFile.load(out).texts) == 0
    with np.load(out) as arrays:
        assert sorted(arrays) == ["squares", "values"]


def test_prompts_are_recorded_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner(looping_model(256), vocab_size=256, num_slots=2048, max_model_len=512)
    parts = ReplicaParts(Path("fake"), FakeTokenizer(), runner)
    monkeypatch.setattr(goose_ray.assembly, "load_parts", lambda config: parts)
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"d{n}", "prompt": f"prompt {n}"}) + "\n" for n in range(5)))
    out = tmp_path / "calibration.npz"
    done = goose_calibrate("--prompts", prompts, "--out", out, "--max-tokens", "24", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["replies_fitted"] == 4
    assert Weights.load(out).values.shape == (NUM_WEIGHTS,)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--recordings", "{folder}", "--out", "c.json"], "--out: must end in .npz"),
        (["--recordings", "{folder}", "--out", "{folder}/none/c.npz"], "--out: folder"),
        (["--recordings", "{folder}/none", "--out", "c.npz"], "--recordings"),
        (["--recordings", "{folder}", "--held-out", "1", "--out", "c.npz"], "--held-out"),
        (["--recordings", "{folder}"], "--out"),
    ],
)
def test_a_wrong_option_is_named(folder: Path, arguments: list[str], says: str) -> None:
    done = goose_calibrate(*(argument.format(folder=folder) for argument in arguments))
    assert done.exit_code != 0
    assert says in done.output.replace("'--out'", "--out")
    assert "Traceback" not in done.output


def foreign(path: Path, kind: str) -> None:
    match kind:
        case "text":
            path.write_text("weights")
        case "other arrays":
            np.savez(path, prompt=np.arange(3))
        case "another version":
            np.savez(path, values=np.zeros(7), squares=np.zeros(7))
        case "integers":
            np.savez(path, values=np.zeros(NUM_WEIGHTS, np.int64), squares=np.zeros(NUM_WEIGHTS))
        case "not finite":
            np.savez(path, values=np.full(NUM_WEIGHTS, np.nan), squares=np.zeros(NUM_WEIGHTS))
        case "negative":
            np.savez(path, values=np.zeros(NUM_WEIGHTS), squares=np.full(NUM_WEIGHTS, -1.0))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "cannot be read: No such file"),
        ("text", "is no .npz file"),
        ("other arrays", "lacks the arrays values, squares; it holds: prompt"),
        ("another version", f"values must be {NUM_WEIGHTS} weights"),
        ("integers", f"values must be {NUM_WEIGHTS} weights"),
        ("not finite", "values must be finite"),
        ("negative", "squares must not be negative"),
    ],
)
def test_a_deployment_refuses_a_file_that_is_no_calibration_before_loading_the_model(
    tmp_path: Path, kind: str, says: str
) -> None:
    path = tmp_path / "c.npz"
    foreign(path, kind)
    with pytest.raises(InvalidSnapshotError):
        Weights.load(path)
    config = GooseConfig.from_args({"model": "no/such-model", "engine": {"calibration": str(path)}})
    with pytest.raises(ConfigError) as raised:
        build_engine(config)
    message = str(raised.value)
    assert message.startswith("engine.calibration: ")
    assert str(path) in message
    assert says in message
    assert message.endswith("name a file that `goose calibrate` wrote")
