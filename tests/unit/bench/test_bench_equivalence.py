"""`goose bench equivalence` finds a difference where there is one, and says what was preempted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import make_engine, make_request
from fakes import FakeTokenizer
from tiny_models import tiny_model

from goose_ray.assembly import ReplicaParts
from goose_ray.bench.engine.decoders import Case
from goose_ray.bench.engine.equivalence import Answer, Cell, EquivalenceRun, Setting, answers, samplings
from goose_ray.bench.engine.equivalence_report import cell_line, equivalence_json, is_whole
from goose_ray.bench.engine.exact import Difference
from goose_ray.bench.prompts import EncodedPrompt
from goose_ray.engine.logprobs import TokenLogprobs
from goose_ray.engine.step import ModelRunner, StepBatch, StepOutput
from goose_ray.runner.local import LocalRunner

CASES = [Case(f"c{i}", "", EncodedPrompt((17, 40, 8, 90, 17, 40, 8, 90, 17, 40 + i))) for i in range(2)]
# The tokenizer of these tests is none that a grammar could be compiled for.
KINDS = {name: sampling for name, sampling in samplings(24).items() if sampling.structured is None}
SETTINGS = [Setting("goose", 8), Setting("goose", 8, short_of_room=True)]


class Faulty:
    """Changes what comes back of steps with several sequences."""

    def __init__(self, runner: LocalRunner, change: Callable[[StepOutput], StepOutput] = lambda output: output) -> None:
        self._runner, self._change = runner, change
        self.spec = runner.spec

    def execute(self, batch: StepBatch) -> StepOutput:
        output = self._runner.execute(batch)
        return self._change(output) if len(batch.sequences) > 2 else output

    def check_health(self) -> None:
        self._runner.check_health()

    def shutdown(self) -> None:
        self._runner.shutdown()


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(tiny_model("llama"), model_id="llama", num_slots=1024)


def cells(runner: ModelRunner, *names: str) -> list[Cell]:
    kinds = {name: KINDS[name] for name in names} or KINDS
    run = EquivalenceRun(ReplicaParts(Path(), FakeTokenizer(), runner), CASES, kinds, budget=16)
    return run.cells(SETTINGS)


def test_equal_answers_pass_and_preemptions_are_counted(runner: LocalRunner) -> None:
    seen = cells(Faulty(runner))
    assert [(cell.sampling, cell.setting) for cell in seen] == [(name, one) for one in SETTINGS for name in KINDS]
    assert is_whole(seen)
    assert {cell.num_preemptions > 0 for cell in seen[: len(KINDS)]} == {False}
    assert {cell.num_preemptions > 0 for cell in seen[len(KINDS) :]} == {True}
    found = json.loads(json.dumps(equivalence_json(seen)))
    assert (found["cases"], found["differences"], found["equal"]) == (2 * len(KINDS) * 2, 0, True)
    assert 0 <= found["largest_logprob_gap"] < 1e-4


def test_a_token_that_differs_is_found(runner: LocalRunner) -> None:
    def change(output: StepOutput) -> StepOutput:
        first, *others = output.paths
        if first is not None:
            tokens = first.token_ids.copy()
            tokens[-1] = (tokens[-1] + 1) % 128
            first = replace(first, token_ids=tokens)
        return replace(output, paths=(first, *others))

    seen = cells(Faulty(runner, change), "greedy", "logprobs")
    assert not is_whole(seen)
    assert any(cell.differences for cell in seen)
    assert equivalence_json(seen)["differences"] > 0


def test_a_log_probability_that_differs_is_found(runner: LocalRunner) -> None:
    def change(output: StepOutput) -> StepOutput:
        moved = (
            None if one is None else replace(one, chosen=one.chosen + np.float32(0.002)) for one in output.logprobs
        )
        return replace(output, logprobs=tuple(moved))

    seen = cells(Faulty(runner, change), "greedy", "logprobs")
    assert not any(cell.differences for cell in seen)
    assert {cell.sampling for cell in seen if not cell.equal} == {"logprobs"}
    assert not is_whole(seen)


def test_gaps_are_taken_by_rank_and_up_to_the_first_difference() -> None:
    one = Answer((1, 2), (TokenLogprobs(1, -0.5, ((1, -0.5), (7, -0.5))), TokenLogprobs(2, -1.0, ((2, -1.0),))))
    # Two equals change places; what follows another token says nothing.
    other = Answer((1, 3), (TokenLogprobs(1, -0.25, ((7, -0.5), (1, -0.5))), TokenLogprobs(3, -9.0, ((2, -1.0),))))
    assert one.gap(other) == 0.25
    assert Answer((1,)).gap(Answer((1,))) == 0.0


def test_what_should_have_been_preempted_and_was_not_is_no_check() -> None:
    short = Setting("goose", 24, short_of_room=True)
    cell = Cell(
        sampling="greedy", setting=short, num_cases=2, differences=(), largest_logprob_gap=None, num_preemptions=0
    )
    assert cell.equal
    assert not is_whole([cell])
    assert is_whole([replace(cell, num_preemptions=1)])
    line = cell_line(replace(cell, differences=(Difference("c0", 3, 5, 6),), largest_logprob_gap=0.002))
    assert "goose" in line
    assert "24 at a time: 1 of 2 replies equal, log-probabilities within 0.002, 0 preemptions in the run" in line


def test_answers_are_begun_in_order_and_no_more_at_a_time() -> None:
    engine = make_engine()
    most = []
    requests = [make_request(str(i), max_tokens=9) for i in range(5)]
    found = answers(engine, requests, concurrency=2, on_answer=lambda: most.append(engine.stats().num_requests_running))
    assert list(found) == ["0", "1", "2", "3", "4"]
    assert {len(answer.token_ids) for answer in found.values()} == {9}
    assert max(most) <= 1
