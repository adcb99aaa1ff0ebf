"""`goose bench device`: what it measures, and that it says so where a backend is wrong."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model
from tiny_models import tiny_model

from goose.cost import CostModel, StepShape
from goose_ray.assembly import ReplicaParts
from goose_ray.bench.device.measures import attention_errors, forward_milliseconds
from goose_ray.bench.device.run import DeviceRun
from goose_ray.cli.bench import bench
from goose_ray.cli.main import main
from goose_ray.config import GooseConfig
from goose_ray.engine.step import StepBatch
from goose_ray.runner.backends import new_backend
from goose_ray.runner.flex import FlexStep
from goose_ray.runner.local import LocalRunner


def _parts(config: GooseConfig, **_: Any) -> ReplicaParts:
    """In place of `load_parts`: a tiny model, and durations that need not be measured."""
    cost = CostModel(max_rows=512)
    for rows in (1, 8, 64, 512):
        cost.observe(StepShape(rows, 1, 0, 0), 1e-3 * (1 + rows / 64))
    backend = new_backend(config.attention_backend, torch.device("cpu"), torch.float32)
    runner = LocalRunner(tiny_model("llama", vocab_size=256), model_id="tiny", num_slots=600, backend=backend)
    return ReplicaParts(Path("tiny"), FakeTokenizer(specials=(EOS,)), runner, cost)


def _report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr("goose_ray.bench.device.run.load_parts", _parts)
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(f'{{"id": "{i}", "prompt": "ab{i} ab{i} ab"}}\n' for i in range(3)))
    arguments = ["device", "--device", "cpu", "--prompts", str(prompts), "--context", "20", "--context", "100000"]
    arguments += ["--limit", "3"]
    result = CliRunner().invoke(bench, [*arguments, "--rounds", "1", "--max-tokens", "12", *options])
    return result.exit_code, json.loads(result.stdout)


def test_the_report_has_every_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, report = _report(monkeypatch, tmp_path, "--json")
    assert code == 0
    assert report["exact"] is True
    assert report["device"]["type"] == "cpu"
    assert report["device"]["name"]
    assert set(report["backends"]) == {"flex", "sdpa"}
    for found in report["backends"].values():
        assert found["replies"]["equal"] == found["replies"]["replies"] == 3
        assert found["replies"]["tau"] > 1
        assert max(found["attention_errors"].values()) < 1e-5
    # A context beyond the pool is left out, and so is the reference that stands for FlexAttention here.
    assert set(report["backends"]["sdpa"]["milliseconds"]) == {"20"}
    assert set(report["backends"]["sdpa"]["milliseconds"]["20"]) == {"1", "8", "16", "32", "64", "128"}
    assert "milliseconds" not in report["backends"]["flex"]
    assert report["speed"]["policies"] == ["autoregressive:1", "anisotropic:auto"]
    assert report["speed"]["equal"] is True
    assert report["speed"]["speedup"] > 0


def test_a_model_that_there_is_not_is_told_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[DeviceRun] = []
    monkeypatch.setattr(DeviceRun, "report", lambda run: measured.append(run))
    result = CliRunner().invoke(main, ["bench", "device", "--device", "cpu", "--model", "nonsense"])
    assert (result.exit_code, result.stdout, measured) == (1, "", [])
    assert result.stderr.startswith("Error: there is no model 'nonsense'")


def test_the_cpu_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a GPU a minute would take the unfused reference hours."""
    asked: list[tuple[object, ...]] = []

    def report(run: DeviceRun) -> dict[str, Any]:
        asked.append((len(run.prompts[0].dialogues), run.max_tokens, run.contexts, run.rounds))
        asked.append((run.config.engine.kv_cache_tokens, run.config.engine.max_running_requests))
        return {"exact": True}

    monkeypatch.setattr(DeviceRun, "report", report)
    assert CliRunner().invoke(bench, ["device", "--device", "cpu", "--json"]).exit_code == 0
    assert CliRunner().invoke(bench, ["device", "--device", "cpu", "--rounds", "7", "--json"]).exit_code == 0
    assert asked == [(2, 16, (256,), 3), (1024, 2), (2, 16, (256,), 7), (1024, 2)]


def test_a_wrong_mask_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that forgets the window."""
    right = FlexStep._visible
    monkeypatch.setattr(FlexStep, "_visible", lambda step, size: right(step, None))
    errors = attention_errors("flex", device=torch.device("cpu"), dtype=torch.float32)
    assert errors["window"] > 1e-3
    assert errors["plain"] < 1e-5


@pytest.mark.parametrize(("error", "equal", "code"), [(1e-7, 3, 0), (1e-3, 3, 1), (1e-7, 2, 1)])
def test_what_is_not_exact_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, error: float, equal: int, code: int
) -> None:
    replies = {"equal": equal, "replies": 3, "tau": 2.0}
    monkeypatch.setattr(DeviceRun, "_replies", lambda run, name: replies)
    monkeypatch.setattr(DeviceRun, "_speed", lambda run: {"speedup": 1.0})
    monkeypatch.setattr("goose_ray.bench.device.run.load_parts", _parts)
    monkeypatch.setattr("goose_ray.bench.device.run.attention_errors", lambda name, **_: {"plain": error})
    result = CliRunner().invoke(bench, ["device", "--device", "cpu", "--context", "20", "--rounds", "1", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["exact"]) == (code, code == 0)


def test_milliseconds_are_medians_without_the_first_round() -> None:
    now_s, forwards = 0.0, count()

    def work(batch: StepBatch) -> None:
        nonlocal now_s
        # The first forward of each size is slow, as where kernels are compiled.
        now_s += 1e-3 * batch.num_rows + (100.0 if next(forwards) < 3 else 0.0)

    runner = FakeRunner(looping_model(), num_slots=512, max_model_len=256, on_step=work)
    found = forward_milliseconds(runner, contexts=(50, 250), rows=(1, 8), rounds=3, clock=lambda: now_s)
    assert found == {50: {1: pytest.approx(1.0), 8: pytest.approx(8.0)}}
