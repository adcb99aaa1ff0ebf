"""Machine code that cannot be kept is compiled all the same."""

import importlib.util
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from goose.jit import jit, needs_compilation

pytest.importorskip("numba")
SOURCE = "def add(a, b):\n    return a + b\n"


def add_of(folder: Path) -> Callable[[int, int], int]:
    """A function that stands in a file of its own."""
    file = folder / "adding.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("adding", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[int, int], int] = module.add
    return function


def kept(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.nbc") if file.stat().st_size]


def test_it_is_kept_beside_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a place of its own would win over the source's
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    compiled = jit(add_of(tmp_path))
    assert compiled(2, 3) == 5
    assert len(kept(tmp_path)) == 1


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    compiled = jit(add_of(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        total = compiled(2, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert total == 5
    assert not needs_compilation(compiled)
    assert not kept(tmp_path)


def test_no_place_to_keep_it_is_no_error() -> None:
    namespace: dict[str, Callable[[int, int], int]] = {}
    exec(SOURCE, namespace)
    compiled = jit(namespace["add"])
    assert compiled(2, 3) == 5
    assert not needs_compilation(compiled)
