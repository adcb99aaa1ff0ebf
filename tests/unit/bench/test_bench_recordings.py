"""Recordings from disk: what they are called, which benchmark they belong to, in which order they come."""

from pathlib import Path

import numpy as np
import pytest
from recording_builders import looping_recording, make_recording, random_recording, save_recording

from goose.errors import InvalidSnapshotError
from goose.replay import Recording
from goose_ray.bench.recordings import Benchmark, benchmark_of_name, is_session, read_benchmarks
from goose_ray.errors import ConfigError


@pytest.mark.parametrize(
    ("stem", "benchmark"),
    [
        ("gsm8k_chat__0", "gsm8k_chat"),
        ("agentic_sessions__0_2", "agentic_sessions"),
        ("classeval_ClassEval_19", "classeval"),
        ("spec_bench_rag_spec_bench_492", "spec_bench_rag"),
        ("mt_bench_mt_bench_112_1", "mt_bench"),
        ("support_sessions_tau_26_0", "support_sessions_tau"),
        ("mine_7", "mine"),
        ("mine", "mine"),
    ],
)
def test_a_benchmark_is_read_off_a_files_name(stem: str, benchmark: str) -> None:
    assert benchmark_of_name(stem) == benchmark


@pytest.mark.parametrize(
    ("name", "session"), [("agentic_sessions", True), ("x/support_sessions_tau", True), ("obsessions", False)]
)
def test_sessions_are_told_by_their_name(name: str, session: bool) -> None:
    assert is_session(name) is session


def test_the_field_of_a_recording_names_its_benchmark(tmp_path: Path) -> None:
    save_recording(make_recording("some_1", [1, 2], [3, 4], benchmark="other"), tmp_path)
    assert [benchmark.name for benchmark in read_benchmarks([tmp_path], seed=0)] == ["other"]


def names_of(benchmark: Benchmark) -> list[str]:
    return [reply.recording.name for reply in benchmark.replies]


def test_replies_are_shuffled_by_seed_and_sessions_kept_in_order(tmp_path: Path) -> None:
    for number in range(12):
        save_recording(random_recording(f"mine_{number}", seed=number), tmp_path)
        save_recording(random_recording(f"agentic_sessions__3_{number}", seed=number), tmp_path)
    sessions, mine = read_benchmarks([tmp_path], seed=0)
    assert names_of(sessions) == [f"agentic_sessions__3_{number}" for number in range(12)], "10 comes after 9"
    assert sorted(names_of(mine)) == sorted(f"mine_{number}" for number in range(12))
    assert names_of(mine) != [f"mine_{number}" for number in range(12)]
    assert names_of(read_benchmarks([tmp_path], seed=0)[1]) == names_of(mine)
    assert names_of(read_benchmarks([tmp_path], seed=1)[1]) != names_of(mine)


def test_a_looping_reply_is_repetitive(tmp_path: Path) -> None:
    save_recording(looping_recording("loop_1"), tmp_path)
    save_recording(random_recording("plain_1", seed=0), tmp_path)
    loop, plain = read_benchmarks([tmp_path], seed=0)
    assert (loop.replies[0].repetitive, plain.replies[0].repetitive) == (True, False)


def test_folders_with_the_same_names_stand_apart(tmp_path: Path) -> None:
    for folder in ("chat", "raw"):
        (tmp_path / folder).mkdir()
        save_recording(random_recording("mine_1", seed=1), tmp_path / folder)
    found = read_benchmarks([tmp_path / "chat", tmp_path / "raw"], seed=0)
    assert [benchmark.name for benchmark in found] == ["chat/mine", "raw/mine"]
    again = read_benchmarks([tmp_path / "chat", tmp_path / "chat" / "mine_1.npz"], seed=0)
    assert [names_of(benchmark) for benchmark in again] == [["mine_1"]], "a file named twice is one recording"


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    recording = random_recording("mine_1", seed=1)
    loaded = Recording.load(save_recording(recording, tmp_path))
    for field in ("prompt_ids", "output_ids", "top_ids", "top_probs"):
        assert np.array_equal(getattr(loaded, field), getattr(recording, field))


ROWS = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"prompt": [1, 2], "output": [3]}, "lacks the arrays top_ids, top_p; it holds: output, prompt"),
        ({"prompt": [1.5], "output": [3], "top_ids": ROWS, "top_p": ROWS}, "prompt must be token ids, not float64"),
        ({"prompt": [1, 2], "output": [], "top_ids": ROWS, "top_p": ROWS}, "output must be token ids"),
        ({"prompt": [1] * 9, "output": [3], "top_ids": ROWS, "top_p": ROWS}, r"top_ids and top_p must hold 10 rows"),
        ({"prompt": [1, 2], "output": [3], "top_ids": ROWS, "top_p": ROWS[:2]}, "top_ids and top_p must hold 3 rows"),
    ],
)
def test_a_foreign_archive_is_refused_naming_path_and_array(
    tmp_path: Path, arrays: dict[str, object], says: str
) -> None:
    path = tmp_path / "mine_1.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(InvalidSnapshotError, match=says) as raised:
        Recording.load(path)
    assert str(path) in str(raised.value)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text_1.npz"
    path.write_text("hello")
    with pytest.raises(ConfigError, match=r"recordings: .*text_1\.npz is no \.npz file"):
        read_benchmarks([tmp_path], seed=0)
    with pytest.raises(ConfigError, match=r"recordings: .*gone\.npz cannot be read: No such file"):
        read_benchmarks([tmp_path / "gone.npz"], seed=0)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="holds one array"):
        read_benchmarks([tmp_path / "one.npy"], seed=0)


def test_prompts_in_place_of_recordings_are_told_from_them(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "prompt": "b"}\n')
    with pytest.raises(ConfigError, match=r"prompts\.jsonl is no \.npz file.*`goose record --prompts ") as raised:
        read_benchmarks([path], seed=0)
    assert "pickle" not in str(raised.value)


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no \.npz file; `goose record --out"):
        read_benchmarks([tmp_path], seed=0)
