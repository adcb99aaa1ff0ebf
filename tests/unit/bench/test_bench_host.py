"""`goose bench host`: a real engine follows the script, and what the clocks show is the whole step."""

import json
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from fakes import FakeTokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from goose_ray.bench.host import host_run, scripted_runner
from goose_ray.bench.host.host_run import HostRun
from goose_ray.bench.host.stage_clocks import stage_clocks
from goose_ray.cli.main import main

VOCAB_SIZE = 1500
TOKENIZER = FakeTokenizer([f" {number}" for number in range(VOCAB_SIZE - 256)])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_run, "_WARM_STEPS", 8)
    monkeypatch.setattr(scripted_runner, "_NUM_WEIGHTS", 1000)


@pytest.mark.parametrize(("budget", "temperature"), [(60, 0.0), ("auto", 0.0), (60, 0.8)])
def test_the_figures_are_of_whole_steps_of_full_batches(budget: int | Literal["auto"], temperature: float) -> None:
    run = HostRun(
        policy="anisotropic", budget=budget, sequences=4, nodes=24, context=40, steps=12, temperature=temperature
    )
    cost = run.measure(TOKENIZER, VOCAB_SIZE)
    assert 12 < cost.nodes <= 24
    assert 1.2 < cost.tau < 6
    assert all(ms > 0 for ms in cost.stages_ms.values())
    assert cost.model_ms > 0
    assert cost.logits_ms > 0
    assert cost.ms > max(cost.stages_ms.values()) / 10


def test_more_sequences_than_nodes_are_refused() -> None:
    run = HostRun(policy="chain", budget=60, sequences=9, nodes=8, context=40, steps=1)
    with pytest.raises(ValueError, match="at least the number of sequences, 9, not 8"):
        run.measure(TOKENIZER, VOCAB_SIZE)


def test_a_stage_inside_another_counts_for_itself() -> None:
    ticks = count()
    place: Any = ModuleType("place")
    place.inner = lambda: next(ticks)
    place.outer = lambda: (next(ticks), place.inner(), next(ticks))
    plain = place.outer
    with stage_clocks({"outer": [(place, "outer")], "inner": [(place, "inner")]}, lambda: next(ticks)) as spent:
        assert place.outer() == (1, 3, 5)
    assert spent == {"outer": 4.0, "inner": 2.0}
    assert place.outer is plain


def test_json_has_the_breakdown_of_each_budget(tmp_path: Path) -> None:
    words = {f"word{number}": number for number in range(VOCAB_SIZE)}
    for name, content in (("config.json", "{}"), ("model.safetensors", "")):
        (tmp_path / name).write_text(content)
    Tokenizer(WordLevel(words, unk_token="word0")).save(str(tmp_path / "tokenizer.json"))
    arguments = ["bench", "host", "--json", "--sequences", "2", "--nodes", "8", "--context", "16", "--steps", "3"]
    done = CliRunner().invoke(main, [*arguments, "--model", str(tmp_path)])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    printed = json.loads(done.stdout)
    assert set(printed["budgets"]) == {"60", "auto"}
    assert printed["ms"] == max(budget["ms"] for budget in printed["budgets"].values())
    assert {"schedule", "draft", "batch", "attention", "observe", "trace"} <= set(printed["budgets"]["60"]["stages_ms"])
