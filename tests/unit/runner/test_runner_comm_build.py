"""What is said when DeepSpeed's collective cannot be built, and that a build which was killed stops nobody."""

from pathlib import Path

import pytest

from goose_ray.errors import ModelLoadError
from goose_ray.runner import comm_build


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOSE_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("missing", "message"), [("ninja", "needs ninja .*pip install ninja"), ("c++", r"needs c\+\+ .*install g\+\+")]
)
def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, message: str) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == missing else f"/bin/{tool}")
    with pytest.raises(ModelLoadError, match=message):
        comm_build.build_shared_memory_op(lambda: pytest.fail("nothing to build with"))


def test_what_the_compiler_said_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")

    def load() -> None:
        raise RuntimeError("shm.cpp:7: error")

    with pytest.raises(ModelLoadError, match=r"could not be built: shm.cpp:7: error"):
        comm_build.build_shared_memory_op(load)


def test_a_build_that_was_killed_leaves_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    folder = Path(comm_build.build_environment()["TORCH_EXTENSIONS_DIR"]) / "deepspeed_shm_comm"
    folder.mkdir(parents=True)
    stale = folder / "lock"
    stale.touch()
    found: list[bool] = []
    comm_build.build_shared_memory_op(lambda: found.append(stale.exists()))
    assert found == [False]
