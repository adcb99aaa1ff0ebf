"""The package's front: its example runs, its exports are sorted, and it brings no torch with it."""

import doctest
import subprocess
import sys

import goose


def test_the_example_runs() -> None:
    failed, tried = doctest.testmod(goose)
    assert tried > 5
    assert failed == 0


def test_exports_are_sorted_and_exist() -> None:
    assert goose.__all__ == sorted(goose.__all__)
    assert all(hasattr(goose, name) for name in goose.__all__)


def test_the_library_needs_numpy_alone() -> None:
    code = (
        "import sys, goose, goose.replay\n"
        "heavy = {'torch', 'ray', 'transformers', 'pydantic', 'fastapi', 'deepspeed', 'goose_ray'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
