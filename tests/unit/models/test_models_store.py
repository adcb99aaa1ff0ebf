"""Converted models appear whole or not at all, once, whoever asks."""

import errno
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from goose_ray.errors import ModelLoadError
from goose_ray.models.store import ModelStore


def fill_small(directory: Path) -> str:
    (directory / "scratch").mkdir()
    (directory / "scratch" / "download").write_bytes(b"x" * 10)
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "config.json").write_text("{}")
    return "source"


def entries(root: Path) -> list[str]:
    """What the cache holds besides locks."""
    return sorted(entry.name for entry in root.iterdir() if entry.suffix != ".lock")


def test_build_then_find(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    assert store.find("m", 1) is None
    path = store.build("m", 1, needed_bytes=1, fill=fill_small)
    assert store.find("m", 1) == path
    assert store.directories() == [path]
    assert entries(path) == ["config.json", "goose.json", "model.safetensors"], "scratch space is dropped"


def test_a_finished_model_is_not_built_again(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.build("m", 1, needed_bytes=1, fill=fill_small)

    def never(directory: Path) -> str:
        raise AssertionError("built again")

    assert store.build("m", 1, needed_bytes=1, fill=never) == store.find("m", 1)


def test_another_recipe_is_another_model(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    old = store.build("m", 1, needed_bytes=1, fill=fill_small)
    assert store.find("m", 2) is None
    assert store.build("m", 2, needed_bytes=1, fill=fill_small) != old
    assert store.find("m", 1) == old, "an older goose keeps its own"


@pytest.mark.parametrize("damage", ["truncate", "remove", "marker", "marker-shape"])
def test_a_damaged_model_is_not_found_and_is_built_anew(tmp_path: Path, damage: str) -> None:
    store = ModelStore(tmp_path)
    path = store.build("m", 1, needed_bytes=1, fill=fill_small)
    match damage:
        case "truncate":
            (path / "model.safetensors").write_bytes(b"wei")
        case "remove":
            (path / "config.json").unlink()
        case "marker":
            (path / "goose.json").write_text("{")
        case "marker-shape":
            (path / "goose.json").write_text("[1]")
    assert store.find("m", 1) is None
    assert store.build("m", 1, needed_bytes=1, fill=fill_small) == path
    assert (path / "model.safetensors").read_bytes() == b"weights"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fails(directory: Path) -> str:
        fill_small(directory)
        raise RuntimeError("half way")

    store = ModelStore(tmp_path)
    with pytest.raises(RuntimeError, match="half way"):
        store.build("m", 1, needed_bytes=1, fill=fails)
    assert entries(tmp_path) == []


def test_what_a_killed_build_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".m-r1.staging").mkdir()
    (tmp_path / ".m-r1.staging" / "half.safetensors").write_bytes(b"half")
    store = ModelStore(tmp_path)
    path = store.build("m", 1, needed_bytes=1, fill=fill_small)
    assert entries(tmp_path) == ["m-r1"]
    assert not (path / "half.safetensors").exists()


def test_too_little_space_is_said_before_any_work(tmp_path: Path) -> None:
    def never(directory: Path) -> str:
        raise AssertionError("started without space")

    with pytest.raises(ModelLoadError, match=r"MiB needed, .* GOOSE_CACHE"):
        ModelStore(tmp_path).build("m", 1, needed_bytes=1 << 60, fill=never)


def test_a_disk_that_fills_up_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def full(directory: Path) -> str:
        fill_small(directory)
        raise OSError(errno.ENOSPC, "No space left on device", str(directory / "model.safetensors"))

    with pytest.raises(ModelLoadError, match=r"No space left on device.*GOOSE_CACHE"):
        ModelStore(tmp_path).build("m", 1, needed_bytes=1, fill=full)
    assert entries(tmp_path) == []


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match="GOOSE_CACHE"):
        ModelStore(tmp_path / "file" / "models").build("m", 1, needed_bytes=1, fill=fill_small)


def _build_in_process(root: Path, log: Path, barrier: Barrier) -> None:
    def logged(directory: Path) -> str:
        with log.open("a") as file:
            file.write("built\n")
        return fill_small(directory)

    barrier.wait()
    ModelStore(root).build("m", 1, needed_bytes=1, fill=logged)


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, log = context.Barrier(3), tmp_path / "log"
    processes = [context.Process(target=_build_in_process, args=(tmp_path / "models", log, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "built\n"
    assert ModelStore(tmp_path / "models").find("m", 1) is not None
