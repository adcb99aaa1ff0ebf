"""`goose bench simulate`: traces as they are published, steps under tunings, and a small fleet through everything."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from recording_builders import looping_recording, random_recording, save_recording

from goose.tuning import TreeTuning, solve
from goose_ray.bench.simulation.records import Kind, ScalingPlan, SimulationPlan
from goose_ray.bench.simulation.scaling import Scaler
from goose_ray.bench.simulation.simulation import simulate
from goose_ray.bench.simulation.step_library import StepLibrary
from goose_ray.bench.simulation.traces import Trace, read_trace
from goose_ray.cli.main import main
from goose_ray.errors import ConfigError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.4799600,110,27
2023-11-16 18:17:04.0319600,3180,8
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 7322, "output_length": 0, "hash_ids": [0, 14]}
"""
PLAN = SimulationPlan(
    replicas=12,
    seconds=80.0,
    period_s=2.0,
    load=0.5,
    budget=6,
    step_s=0.025,
    row_s=0.0001,
    lost=0.3,
    killed=0.25,
    start_s=10.0,
)


def trace_of(prompt: int, output: int, num_requests: int = 40) -> Trace:
    lengths = np.full(num_requests, prompt), np.full(num_requests, output)
    return Trace(np.arange(0.0, num_requests / 2, 0.5), *lengths)


@pytest.fixture(scope="module")
def libraries() -> list[StepLibrary]:
    texts = [
        [looping_recording(f"loop-{period}", period=period) for period in (4, 6, 9)],
        [random_recording(f"text-{seed}", seed=seed, vocab_size=12) for seed in range(4)],
    ]
    return [StepLibrary.record(each, budget=6, size=24, seed=0, misjudged=1.0) for each in texts]


class TestTraces:
    def test_both_formats_in_order_of_arrival(self, tmp_path: Path) -> None:
        csv, lines = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl"
        csv.write_text(AZURE)
        lines.write_text(MOONCAKE)
        azure, mooncake = read_trace(csv), read_trace(lines)
        assert np.allclose(azure.arrivals_s, [0, 0.052, 1.5], atol=1e-4)
        assert azure.prompt_tokens.tolist() == [4808, 3180, 110]
        assert azure.output_tokens.tolist() == [10, 8, 27]
        assert mooncake.arrivals_s.tolist() == [0, 3]
        # an answer has a token at least
        assert mooncake.output_tokens.tolist() == [500, 1]

    @pytest.mark.parametrize("text", ["", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.97,3\n", AZURE[:79]])
    def test_what_is_no_trace_is_named(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "bad.csv"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"trace: .*bad\.csv must"):
            read_trace(path)

    @pytest.mark.parametrize("rate", [0.7, 2.0, 9.5])
    def test_scaling_keeps_lengths_and_makes_the_rate(self, rate: float) -> None:
        trace = Trace(np.arange(0.0, 25.0, 0.5), np.arange(50) + 100, np.arange(50) + 1)
        scaled = trace.scaled(rate, 400.0, np.random.default_rng(0))
        assert (np.diff(scaled.arrivals_s) >= 0).all()
        assert 0 <= scaled.arrivals_s[0] < scaled.arrivals_s[-1] < 400
        # six standard deviations of the number of copies, and the two seconds that arrivals are moved by
        assert abs(len(scaled) / 400 / rate - 1) < 6 / np.sqrt(400 * rate) + 0.01
        assert (scaled.prompt_tokens - scaled.output_tokens == 99).all()


class TestStepLibrary:
    def test_a_tuning_that_asks_for_nothing_changes_nothing(self, libraries: list[StepLibrary]) -> None:
        for library in libraries:
            untuned = library.outcomes(TreeTuning())
            nearly = library.outcomes(TreeTuning(offsets=(0.01, -0.01, 0.0)))
            assert nearly is untuned
            assert untuned.committed.min() >= 1
            once = untuned.table(np.ones(len(library), np.int64))
            assert once.accepted_per_position().sum() == (untuned.committed - 1).sum() > 0

    def test_offsets_move_what_is_verified(self, libraries: list[StepLibrary]) -> None:
        library = libraries[1]
        plain, less = (library.outcomes(TreeTuning(offsets=(o, 0.0, 0.0))) for o in (0.0, -2.0))
        each = np.ones(len(library), np.int64)
        assert less.table(each).totals()["context"][0] < plain.table(each).totals()["context"][0]

    def test_what_its_counts_ask_for_undoes_a_misjudgement(self) -> None:
        texts = [random_recording(f"text-{seed}", seed=seed, vocab_size=12) for seed in range(6)]
        right, wrong = (
            StepLibrary.record(texts, budget=6, size=400, seed=0, misjudged=misjudged).counts()
            for misjudged in (0.0, 1.5)
        )
        assert solve([wrong]).offsets[0] < solve([right]).offsets[0] - 0.25


class TestSimulation:
    def test_a_fleet_is_tuned_and_counted_exactly_through_losses_and_deaths(self, libraries: list[StepLibrary]) -> None:
        kinds = [Kind("code", trace_of(300, 20), libraries[0]), Kind("chat", trace_of(100, 60), libraries[1])]
        found = simulate(kinds, PLAN)
        assert found.exact
        assert 0 < found.finished <= found.requests
        assert found.lost > 0 < found.doubled
        start, killed, aggregator, changed = found.events
        assert all(event.seconds_to_tuned is not None for event in (start, killed, aggregator))
        # a new replica stands there after ten seconds, and tells of itself within some periods
        assert killed.seconds_to_known is not None
        assert 10 <= killed.seconds_to_known <= 24
        assert killed.restarted > 0
        assert min(moment.live for moment in found.timeline) == 9
        # loops are drafted, single random tokens hardly are
        assert changed.tau_after < changed.tau_before

    def test_the_same_seed_is_the_same_simulation(self, libraries: list[StepLibrary]) -> None:
        kinds = [Kind("code", trace_of(300, 20), libraries[0]), Kind("chat", trace_of(100, 60), libraries[1])]
        first, second = (simulate(kinds, replace(PLAN, seconds=20.0)) for _ in range(2))
        assert first.timeline == second.timeline
        assert (first.tokens, first.reports, first.lost) == (second.tokens, second.reports, second.lost)


class TestScaling:
    def test_a_wish_is_followed_once_it_has_lasted(self) -> None:
        scaler = Scaler(least=1, most=8, upscale_delay_s=5.0, downscale_delay_s=20.0)
        assert scaler.target(2.9, 2, 0.0) == 2
        # something else is wanted for a moment: the delay begins anew
        assert scaler.target(0.0, 2, 3.0) == 2
        assert scaler.target(2.9, 2, 4.0) == 2
        assert scaler.target(2.9, 2, 8.0) == 2
        assert scaler.target(2.9, 2, 9.0) == 3
        assert scaler.target(0.0, 4, 10.0) == 4
        assert scaler.target(0.0, 4, 30.0) == 1

    def test_a_fleet_grows_under_load_and_answers(self, libraries: list[StepLibrary]) -> None:
        kinds = [Kind("code", trace_of(300, 20), libraries[0]), Kind("chat", trace_of(100, 60), libraries[1])]
        scaling = ScalingPlan(initial=0.3, upscale_delay_s=2.0, downscale_delay_s=20.0)
        plan = replace(PLAN, killed=0.0, load=0.5, seconds=70.0, scaling=scaling)
        found = simulate(kinds, plan)
        live = [moment.live for moment in found.timeline]
        assert live[0] == 4
        assert max(live) > 6
        assert found.exact
        # who had waited at the first four went to those that came
        assert max(moment.waiting for moment in found.timeline) > 100
        assert found.timeline[-1].waiting == 0
        assert found.finished > 0.9 * found.requests
        by_requests = simulate(kinds, replace(plan, scaling=replace(scaling, target_ongoing=1000.0)))
        assert max(moment.live for moment in by_requests.timeline) == 4
        assert by_requests.token_p95_s > found.token_p95_s > 0


def test_json_holds_all_there_is(tmp_path: Path) -> None:
    recordings, code, chat = tmp_path / "recordings", tmp_path / "code.csv", tmp_path / "chat.jsonl"
    recordings.mkdir()
    for number in range(3):
        save_recording(looping_recording(f"code__{number}", period=5 + number), recordings)
        save_recording(random_recording(f"chat__{number}", seed=number), recordings)
    code.write_text(AZURE)
    chat.write_text(MOONCAKE)
    options = ["--code", str(code), "--chat", str(chat), "--recordings", str(recordings), "--replicas", "10"]
    options += ["--code-replies", "code", "--chat-replies", "chat", "--seconds", "20"]
    result = CliRunner().invoke(main, ["bench", "simulate", *options, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["exact"] is True
    assert [event["what"] for event in found["events"]] == [
        "start",
        "replicas killed",
        "aggregator killed",
        "traffic changed",
    ]
    assert len(found["timeline"]) == 20
