"""What all tests share: where the data outside the repository is, and the seed of the property tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run; a slow machine is no failure.
settings.register_profile("goose", derandomize=True, deadline=None)
settings.load_profile("goose")

_REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared test data: `GOOSE_SHARED`, else `shared` beside the repository.

    Without it the test is skipped, unless `GOOSE_SHARED_REQUIRED=1` makes its absence an error.
    """
    folder = Path(os.environ.get("GOOSE_SHARED", _REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        reason = f"no shared test data at {folder}; set GOOSE_SHARED to its folder"
        if os.environ.get("GOOSE_SHARED_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def goose_trees_file(request: pytest.FixtureRequest) -> Path:
    """Reference decisions of the paper's method: `GOOSE_TREES`, else the file among the shared data."""
    named = os.environ.get("GOOSE_TREES")
    if named:
        return Path(named)
    shared: Path = request.getfixturevalue("shared_dir")
    return shared / "data" / "goose_trees.jsonl"
