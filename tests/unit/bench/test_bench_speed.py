"""`goose bench engine` and `goose bench cost`: what is timed, in which order, and what is said about it."""

import json
from itertools import count
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from fakes import EOS, FakeRunner, FakeTokenizer, looping_model
from tiny_models import tiny_model

from goose.cost import CostModel, StepShape
from goose_ray.assembly import ReplicaParts
from goose_ray.bench.prompts import Dialogue, PromptFile
from goose_ray.bench.speed.cost import measure_rows
from goose_ray.bench.speed.report import speed_json, speed_lines
from goose_ray.bench.speed.speed_run import Contender, SpeedRun
from goose_ray.cli.bench import bench
from goose_ray.config import EngineConfig
from goose_ray.engine.step import StepBatch
from goose_ray.errors import ConfigError
from goose_ray.runner.local import LocalRunner

PLAIN, CHAIN, AUTO = Contender("autoregressive", 60), Contender("chain", 16), Contender("anisotropic", "auto")


class Machine:
    """A forward takes a second, however many rows it has."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.batches: list[StepBatch] = []

    def work(self, batch: StepBatch) -> None:
        self.batches.append(batch)
        self.now_s += 1.0

    def run(self, *contenders: Contender, concurrency: int = 1, rounds: int = 1) -> SpeedRun:
        model = looping_model(256)
        runner = FakeRunner(model, vocab_size=256, num_slots=4096, max_model_len=512, on_step=self.work)
        cost = CostModel(max_rows=512)
        for rows in (1, 2, 4, 8, 16, 64, 512):
            cost.observe(StepShape(rows, 1, 0, 0), 1.0)
        return SpeedRun(
            parts=ReplicaParts(Path("fake"), FakeTokenizer(specials=(EOS,)), runner, cost),
            engine=EngineConfig(budget="auto", max_running_requests=concurrency, prefix_cache=False),
            contenders=contenders,
            chat=False,
            max_tokens=40,
            concurrency=concurrency,
            rounds=rounds,
            clock=lambda: self.now_s,
        )


PROMPTS = PromptFile("fake", tuple(Dialogue(f"d{i}", prompt=f"prompt {i}") for i in range(5)))


def test_speed_is_tokens_over_the_time_of_all_steps() -> None:
    machine = Machine()
    result = machine.run(PLAIN, CHAIN).measure(PROMPTS)
    plain, chain = result.contenders
    assert plain.tokens == chain.tokens == 5 * 40
    assert (plain.tau, plain.nodes_per_step) == (1.0, 1.0)
    # The first token comes with the end of the prompt, here in one step.
    assert plain.seconds == 5 * 40
    assert chain.seconds == chain.steps < plain.steps
    assert result.speedup(1) == pytest.approx(plain.seconds / chain.seconds)
    assert result.equal
    assert machine.now_s == plain.seconds + chain.seconds


def test_contenders_take_turns() -> None:
    """Group by group, and the other one first in the next."""
    machine = Machine()
    machine.run(PLAIN, CHAIN).measure(PROMPTS)
    # The plain engine never drafts, the chain asks for trees of several nodes now and then.
    starts = [i for i, batch in enumerate(machine.batches) if not len(batch.sequences[0].context_slots)]
    assert len(starts) == 10
    lengths = [end - start for start, end in zip(starts, [*starts[1:], len(machine.batches)], strict=True)]
    assert [length == 40 for length in lengths] == [True, False, False, True] * 2 + [True, False]


def test_each_round_begins_anew_with_the_other_one() -> None:
    once, thrice = (Machine().run(PLAIN, CHAIN, rounds=rounds).measure(PROMPTS) for rounds in (1, 3))
    assert [one.steps for one in thrice.contenders] == [3 * one.steps for one in once.contenders]
    assert thrice.equal
    machine = Machine()
    machine.run(PLAIN, CHAIN, concurrency=8, rounds=2).measure(PROMPTS)
    # plain decoding is first in the first round and last in the second
    for part in (machine.batches[:20], machine.batches[-20:]):
        assert not any(
            step.tree is not None and step.tree.num_draft_nodes for batch in part for step in batch.sequences
        )


def test_the_parts_are_of_the_replies() -> None:
    result = Machine().run(PLAIN, CHAIN, AUTO).measure(PROMPTS)
    assert result.num_of("natural") + result.num_of("repetitive") == 5
    for index in (1, 2):
        parts = [result.part_speedup(index, "natural"), result.part_speedup(index, "repetitive")]
        known = [part for part in parts if part is not None]
        assert min(known) <= result.speedup(index) + 1e-9
        assert result.speedup(index) <= max(known) + 1e-9
    assert result.contenders[2].prediction_error == pytest.approx(0.0, abs=0.05)
    assert result.contenders[1].prediction_error is None


@pytest.mark.parametrize("concurrency", [2, 8])
def test_a_batch_is_shared(concurrency: int) -> None:
    machine = Machine()
    result = machine.run(PLAIN, CHAIN, concurrency=concurrency).measure(PROMPTS)
    assert result.equal
    assert max(len(batch.sequences) for batch in machine.batches) == min(5, concurrency)
    assert result.contenders[0].seconds < 5 * 40


def test_engines_that_keep_prefixes_cannot_share_a_pool() -> None:
    run = Machine().run(PLAIN, CHAIN)
    with pytest.raises(ValueError, match="prefix_cache"):
        SpeedRun(
            parts=run.parts, engine=EngineConfig(), contenders=(PLAIN,), chat=False, max_tokens=8, concurrency=1
        ).measure(PROMPTS)


def test_the_report_says_the_same_as_json_and_as_lines() -> None:
    run = Machine().run(PLAIN, CHAIN, AUTO)
    sessions = PromptFile("support_sessions", PROMPTS.dialogues[:1])
    results = [run.measure(PROMPTS), run.measure(sessions)]
    report = speed_json(run.contenders, results)
    assert json.loads(json.dumps(report)) == report
    assert report["policies"] == ["autoregressive:60", "chain:16", "anisotropic:auto"]
    assert report["speedup"] == report["benchmarks"]["fake"]["speedup"], "sessions stand apart from the mean"
    assert report["speedup"] == pytest.approx(results[0].speedup(1), abs=1e-3)
    assert report["against_first"]["anisotropic:auto"]["speedup"] == pytest.approx(results[0].speedup(2), abs=1e-3)
    assert report["benchmarks"]["fake"]["policies"]["chain:16"]["tokens"] == 200
    lines = speed_lines(run.contenders, results).splitlines()
    assert len(lines) == 1 + 2 * 3 + 2
    assert f"{results[0].speedup(1):.2f}" in lines[2]
    assert "not equal" not in speed_lines(run.contenders, results)


def test_rows_are_measured_side_by_side() -> None:
    """With a clock that ticks once a look, every forward takes one tick; what is run is real."""
    model, theirs = tiny_model("llama"), tiny_model("llama")
    runner = LocalRunner(model, model_id="tiny", num_slots=256)
    ticks = count()
    rounds: list[None] = []
    costs = measure_rows(
        runner,
        theirs,
        rows=(1, 3, 8),
        context=40,
        rounds=2,
        clock=lambda: float(next(ticks)),
        on_round=lambda: rounds.append(None),
    )
    assert [(cost.rows, cost.ours_ms, cost.transformers_ms) for cost in costs] == [(n, 1e3, 1e3) for n in (1, 3, 8)]
    assert len(rounds) == 3


def test_rows_that_do_not_fit_are_refused() -> None:
    runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=64)
    with pytest.raises(ConfigError, match="need 72 tokens"):
        measure_rows(runner, tiny_model("llama"), rows=(1, 8), context=64)


def test_a_budget_is_a_number_or_auto(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "prompt": "x"}\n')
    for wrong in ("0", "much"):
        result = CliRunner().invoke(bench, ["tau", "--budget", wrong, "--prompts", str(prompts)])
        assert result.exit_code == 2
        assert wrong in result.output
    result = CliRunner().invoke(bench, ["engine", "--policy", "chain:none", "--prompts", str(prompts)])
    assert result.exit_code == 2
    assert "none" in result.output


def test_transformers_keeps_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every forward of theirs must attend to the context alone, not to the rows of the one before."""
    theirs = tiny_model("llama")
    runner = LocalRunner(tiny_model("llama"), model_id="tiny", num_slots=256)
    seen: list[int] = []
    forward = type(theirs).forward

    def listening(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        seen.append(kwargs["past_key_values"].get_seq_length())  # type: ignore[attr-defined]
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(theirs), "forward", listening)
    measure_rows(runner, theirs, rows=(1, 8), context=40, rounds=1)
    assert seen == [0, 40, 40, 40, 40]
