"""`goose bench cluster`: what it measures of a few replicas and small recordings."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from recording_builders import looping_recording, random_recording, save_recording

from goose_ray.bench.cluster.learning import DRIFT_MODES, run_start
from goose_ray.bench.cluster.load import measure_aggregator
from goose_ray.cli.main import main


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, ["bench", "cluster", "--replicas", "20", "--periods", "2", *args])


def test_reports_are_small_and_a_change_is_everywhere_within_two_periods() -> None:
    cost = measure_aggregator(40, 2.0, 2)
    assert 1000 < cost.mean_report_bytes <= cost.max_report_bytes < 4096
    assert cost.unchanged_answer_bytes < 10 < cost.changed_answer_bytes
    assert cost.periods_to_all <= 2
    assert cost.cpu_share > 0


def test_a_new_replica_that_starts_from_what_others_know_drafts_it() -> None:
    # every reply is given twice, so half of what is asked later has been answered before by somebody
    replies = [random_recording(f"r{seed}-{copy}", seed=seed, vocab_size=500) for seed in range(8) for copy in range(2)]
    nothing, _, shared = run_start(replies, replicas=2, budget=8, seed=1)
    assert shared.tau > 3 * nothing.tau
    assert shared.steps < nothing.steps
    assert nothing.steps_to_steady is None


def test_json_holds_all_there_is(tmp_path: Path) -> None:
    for number in range(4):
        save_recording(looping_recording(f"code__{number}", period=5 + number), tmp_path)
        save_recording(random_recording(f"chat__{number}", seed=number), tmp_path)
    options = ("--recordings", str(tmp_path), "--before", "code", "--after", "chat", "--fleet", "2", "--budget", "8")
    done = invoke(*options, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["aggregator"]["replicas"] == 20
    assert [start["name"] for start in found["start"]] == ["nothing", "weights", "weights and texts"]
    modes = [(drift["mode"], drift["learning_rate"]) for drift in found["drift"]]
    assert modes == [(mode, rate) for rate in (0.05, 0.0) for mode in DRIFT_MODES]
    # loops are drafted, single random tokens are not
    assert all(drift["tau_before"] > 2 * drift["tau_after"] > 0 for drift in found["drift"])
    assert "tuning frozen" in invoke(*options).stdout


def test_traffic_that_is_not_there_is_named(tmp_path: Path) -> None:
    save_recording(looping_recording("code__0"), tmp_path)
    done = invoke("--recordings", str(tmp_path), "--before", "code", "--after", "chat")
    assert done.exit_code == 1
    assert "no benchmark begins with chat; there are: code" in done.stderr
