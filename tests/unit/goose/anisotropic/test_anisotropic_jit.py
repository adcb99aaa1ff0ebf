"""Compiled and plain: the same trees. Compiling takes its time, so it happens in one process, once."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from goose import jit

SCRIPT = """
import json
import sys

import numpy as np

from goose.jit import needs_compilation
from goose.anisotropic import steps
from goose.replay import Recording, replay
from goose.speculator import Speculator


assert needs_compilation(steps.build_trees) is (sys.argv[1] == "compiled")
rng = np.random.default_rng(3)
words = [rng.integers(0, 50_000, 7) for _ in range(6)]
tokens = np.concatenate([words[w] for w in rng.integers(0, 6, 40)])
tokens[rng.integers(0, len(tokens), 20)] = rng.integers(0, 150_000, 20)
likely = np.stack([np.append(tokens[1:], 0), rng.integers(0, 150_000, len(tokens))], axis=1)
wrong = rng.random(len(tokens)) < 0.3
likely[wrong] = likely[wrong][:, ::-1]
probs = np.tile(np.asarray([0.8, 0.15], dtype=np.float32), (len(tokens), 1))
recording = Recording("r", tokens[:120], tokens[120:], likely, probs)
speculator = Speculator(policy="anisotropic", budget=12)
trees = []
propose = speculator.propose

def noted(*args, **kwargs):
    batch = propose(*args, **kwargs)
    trees.extend(
        (t.token_ids.tolist(), t.parents.tolist(), t.sources.tolist(), [round(p, 6) for p in t.probs.tolist()])
        for t in batch
    )
    return batch

speculator.propose = noted
for _ in range(2):
    replay(recording, speculator)
print(json.dumps(trees))
"""


def trees_of(mode: str) -> list[list[list[float]]]:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if mode == "compiled" else "1"}
    # Numbers that overflow in plain numpy would wrap in machine code: both must stay in range.
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT, mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    trees: list[list[list[float]]] = json.loads(done.stdout)
    return trees


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
def test_machine_code_and_plain_python_draft_alike() -> None:
    compiled, plain = trees_of("compiled"), trees_of("plain")
    assert len(compiled) == len(plain) > 20
    for fast, slow in zip(compiled, plain, strict=True):
        assert fast[:3] == slow[:3]
        assert fast[3] == pytest.approx(slow[3], abs=2e-6)


def test_plain_python_runs_without_a_warning() -> None:
    assert len(trees_of("plain")) > 20


def test_without_numba_a_function_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(jit, "numba", None)
    assert jit.jit(double) is double
    assert not jit.needs_compilation(double)
