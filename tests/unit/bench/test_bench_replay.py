"""`goose replay`: the same replies in the same state for every policy, and the folder that comes of it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.image import imread
from recording_builders import looping_recording, random_recording, save_recording

from goose.replay import Recording
from goose.tree import TokenTree
from goose_ray.bench.recordings import Benchmark, RecordedReply, read_benchmarks
from goose_ray.bench.replay.policy_run import ReplayPlan
from goose_ray.bench.replay.step_statistics import StepStatistics, spine_of
from goose_ray.bench.replay.study import Study, study
from goose_ray.bench.replay.tree_plots import positions
from goose_ray.cli.main import main
from goose_ray.errors import ConfigError


def benchmark(name: str, *recordings: Recording) -> Benchmark:
    return Benchmark(name, tuple(RecordedReply(one, one.name.startswith("loop")) for one in recordings))


LOOPS = benchmark("loops", *(looping_recording(f"loop{period}", period=period) for period in (5, 6, 7)))
MIXED = benchmark("mixed", looping_recording("loop9", period=9), random_recording("plain", seed=1))
SESSIONS = benchmark("my_sessions", looping_recording("loop8", period=8), looping_recording("loop8b", period=8))
PLAN = ReplayPlan(benchmarks=(LOOPS, MIXED, SESSIONS))


@pytest.fixture(scope="module")
def result() -> Study:
    return study(PLAN, ["goose", "chain"], [6, 10])


def test_every_reply_is_replayed_whole_and_sessions_stand_apart(result: Study) -> None:
    run = PLAN.run("goose", 20)
    assert {name: [one.committed for one in own] for name, own in run.results.items()} == {
        "loops": [40] * 3,
        "mixed": [40] * 2,
        "my_sessions": [40] * 2,
    }
    assert [one.name for one in PLAN.compared] == ["loops", "mixed"]
    for one in result.figures:
        assert list(one.parts["all"].benchmarks) == ["loops", "mixed"]
        assert list(one.sessions) == ["my_sessions"]
        assert {part: own.num_replies for part, own in one.parts.items()} == {"all": 5, "natural": 1, "repetitive": 4}


def test_sessions_alone_are_compared() -> None:
    plan = ReplayPlan(benchmarks=(SESSIONS,))
    assert (plan.compared, plan.sessions) == ((SESSIONS,), ())


def test_benchmarks_start_cold_whatever_went_before() -> None:
    alone = ReplayPlan(benchmarks=(MIXED,)).run("goose", 20).results["mixed"]
    assert PLAN.run("goose", 20).results["mixed"] == alone
    assert (
        PLAN.run("goose", 20).results["mixed"]
        != ReplayPlan(benchmarks=(MIXED, LOOPS), warm=3).run("goose", 20).results["mixed"]
    ), "the table of transitions knows the loops' tokens"


def test_warm_replies_are_of_other_benchmarks_and_those_of_the_seed() -> None:
    plan = ReplayPlan(benchmarks=(LOOPS, MIXED, SESSIONS), warm=3, seed=4)
    own = {id(reply.recording) for reply in LOOPS.replies}
    first = plan.warm_up(LOOPS)
    assert len(first) == 3
    assert not own & {id(one) for one in first}
    assert [one.name for one in plan.warm_up(LOOPS)] == [one.name for one in first]
    assert len(ReplayPlan(benchmarks=PLAN.benchmarks, warm=99).warm_up(LOOPS)) == 4


def test_policies_are_taken_where_they_verify_the_wanted_nodes(result: Study) -> None:
    for wanted in result.wanted:
        goose, chain = result.at(wanted)
        assert goose.match.nodes == pytest.approx(wanted, rel=0.1)
        assert goose.match.reached
        assert goose.parts["all"].nodes == pytest.approx(goose.match.nodes), "what was searched is what is reported"
        assert not chain.match.reached, "few of these replies have a match to copy from"
    assert result.at(6)[0].match.budget < result.at(10)[0].match.budget
    assert result.at(6)[1].match.nodes == result.at(10)[1].match.nodes == max(result.at(6)[1].match.tried.values())


def test_the_subject_is_compared_with_each_other_policy(result: Study) -> None:
    assert [(one.policy, one.wanted) for one in result.comparisons] == [("chain", 6), ("chain", 10)]
    comparison = result.comparisons[0]
    goose, chain = (one.parts["all"].macro.value for one in result.at(6))
    assert comparison.parts["all"].value == pytest.approx(goose / chain)
    assert comparison.worst[1] == min(one.value for one in comparison.benchmarks.values())
    with pytest.raises(ConfigError, match="subject must be one of the policies goose, chain, not 'suffix'"):
        study(PLAN, ["goose", "chain"], [6], subject="suffix")


def test_statistics_are_of_the_compared_benchmarks(result: Study) -> None:
    plan = ReplayPlan(benchmarks=(LOOPS, MIXED))
    for one in result.figures:
        statistics = StepStatistics()
        plan.run(one.policy, one.match.budget, statistics)
        assert statistics.acceptance == one.statistics.acceptance
        assert statistics.shape == one.statistics.shape


def test_counts_of_shape_agree_with_those_of_acceptance() -> None:
    statistics = StepStatistics()
    run = ReplayPlan(benchmarks=(LOOPS, MIXED)).run("goose", 20, statistics)
    results = [one for own in run.results.values() for one in own]
    shape = statistics.shape
    assert shape.spine_nodes + shape.branch_nodes == sum(one.nodes - one.steps for one in results)
    assert shape.spine_accepted + shape.branch_accepted == sum(one.committed - one.steps for one in results)
    reliability = statistics.reliability()
    assert reliability is not None
    assert reliability.num_nodes == shape.spine_reached + shape.branch_reached
    accepted = sum(one.num_nodes * one.observed for one in reliability.bins)
    assert accepted == pytest.approx(shape.spine_accepted + shape.branch_accepted)


def test_a_policy_without_probabilities_has_no_reliability() -> None:
    statistics = StepStatistics()
    statistics.observe(LOOPS, TokenTree.chain(1, [2, 3], source=1), np.array([1]))
    assert statistics.reliability() is None
    assert StepStatistics().reliability() is None


# 0 ── 1 ── 2
#  └── 3 ── 4
#       └── 5
TREE = TokenTree.from_parents([0, 1, 2, 3, 4, 5], [-1, 0, 1, 0, 3, 3], probs=[1, 0.4, 0.5, 0.6, 0.2, 0.7])


def test_the_spine_is_the_likeliest_of_the_deepest_paths() -> None:
    assert spine_of(TREE) == [3, 5]
    assert spine_of(TokenTree.anchor_only(1)) == []
    statistics = StepStatistics()
    statistics.observe(LOOPS, TREE, np.array([1]))
    shape = statistics.shape
    assert (shape.spine_nodes, shape.spine_reached, shape.spine_accepted) == (2, 1, 0)
    assert (shape.branch_nodes, shape.branch_reached, shape.branch_accepted) == (3, 2, 1)


def test_trees_are_sampled_uniformly() -> None:
    """Of 6 trees 3 are kept; over 400 seeds each is kept 200 times, 5 standard deviations are 50: chance below 1e-5."""
    kept = np.zeros(6)
    for seed in range(400):
        statistics = StepStatistics(seed)
        for number in range(6):
            tree = TokenTree.chain(number, [1, 2, 3], source=1)
            statistics.observe(LOOPS, tree, np.empty(0, dtype=np.int64))
        assert len(statistics.trees) == 3
        kept[[int(one.tree.token_ids[0]) for one in statistics.trees]] += 1
    assert ((kept > 150) & (kept < 250)).all()


def test_nodes_are_drawn_by_depth_and_apart() -> None:
    places = positions(TREE)
    assert places[:, 0].tolist() == [0, 1, 2, 1, 2, 2]
    assert len(np.unique(places, axis=0)) == TREE.num_nodes
    assert places[3, 1] == (places[4, 1] + places[5, 1]) / 2
    assert places[1, 1] == places[2, 1] > places[4, 1] > places[5, 1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for period in (5, 6):
        save_recording(looping_recording(f"loops__{period}", period=period), recordings)
        save_recording(random_recording(f"plain__{period}", seed=period), recordings)
        save_recording(looping_recording(f"my_sessions__0_{period}", period=8), recordings)
    return recordings


def goose_replay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def test_the_report_is_a_folder_of_markdown_and_images(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    done = goose_replay("--recordings", folder, "--policy", "goose", "chain", "--nodes", "6", "12", "--out", out)
    assert done.exit_code == 0, done.output
    text = (out / "report.md").read_text(encoding="utf-8")
    images = sorted(path.name for path in out.glob("*.png"))
    assert {"macro_tau.png", "tau_6.png", "tau_12.png", "acceptance_6.png", "shape_12.png"} <= set(images)
    assert {"reliability_6.png", "trees_goose.png", "trees_chain.png"} <= set(images)
    for name in images:
        assert f"({name})" in text
        pixels = imread(out / name)
        assert pixels.shape[0] > 100
        assert pixels.shape[1] > 100
        assert len(np.unique(pixels)) > 2, f"{name} shows something"
    assert "| goose over |" in text
    assert "my_sessions" in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.count("|") == text_table_width(text, line), line
    assert json.loads((out / "report.json").read_text()) == json.loads(
        goose_replay("--recordings", folder, "--policy", "goose", "chain", "--nodes", "6", "12", "--json").stdout
    )


def text_table_width(text: str, line: str) -> int:
    """Bars in the head of the table that the line stands in."""
    table = next(block for block in text.split("\n\n") if line in block.splitlines())
    return table.splitlines()[0].count("|")


def test_json_has_the_documented_fields(folder: Path) -> None:
    row: dict[str, Any] = json.loads(
        goose_replay("--recordings", folder, "--policy", "goose", "chain", "--nodes", "6", "--json").stdout
    )
    assert row["replies"] == {"loops": 2, "my_sessions": 2, "plain": 2}
    assert row["natural_replies"] == {"loops": 0, "my_sessions": 0, "plain": 2}
    assert row["sessions"] == ["my_sessions"]
    assert [(one["policy"], one["wanted_nodes"]) for one in row["figures"]] == [("goose", 6), ("chain", 6)]
    figures = row["figures"][0]
    assert set(figures["parts"]) == {"all", "natural", "repetitive"}
    assert set(figures["parts"]["all"]["tau"]) == {"loops", "plain"}
    value, low, high = figures["parts"]["all"]["macro_tau"]
    assert low <= value <= high
    assert set(figures["sessions"]) == {"my_sessions"}
    assert figures["reliability"]["ece"] >= 0
    assert row["comparisons"][0]["worst"]["benchmark"] in ("loops", "plain")


def test_the_seed_decides_and_nothing_else(folder: Path) -> None:
    arguments = ("--recordings", folder, "--policy", "goose", "--nodes", "6", "--json", "--seed")
    assert goose_replay(*arguments, "3").stdout == goose_replay(*arguments, "3").stdout


def test_all_policies_are_compared_by_default(folder: Path) -> None:
    from goose.policies.registry import POLICIES

    done = goose_replay("--recordings", folder, "--nodes", "4", "--json")
    assert done.exit_code == 0, done.output
    policies = [one["policy"] for one in json.loads(done.stdout)["figures"]]
    assert policies[0] == "anisotropic"
    assert sorted(policies) == sorted(set(POLICIES) - {"autoregressive"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "gose"], "policy: no policy 'gose'; known: anisotropic"),
        (["--policy", "chain", "--subject", "goose"], "subject must be one of the policies chain, not 'goose'"),
        (["--nodes", "0"], "--nodes"),
        (["--warm", "-1"], "--warm"),
        (["--nodes", "sixty"], "--nodes"),
    ],
)
def test_a_wrong_option_is_named(folder: Path, arguments: Sequence[str], says: str) -> None:
    done = goose_replay("--recordings", folder, *arguments)
    assert done.exit_code != 0
    assert says in done.output
    assert "Traceback" not in done.output


def test_recordings_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no .npz file" in goose_replay("--recordings", tmp_path / "empty").output
    assert "--recordings" in goose_replay("--recordings", tmp_path / "gone").output


def test_without_matplotlib_a_report_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("goose_ray.bench.replay.report", "goose_ray.bench.replay.plots", "goose_ray.bench.replay.tree_plots"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = goose_replay("--recordings", folder, "--out", folder / "report")
    assert done.exit_code == 1
    assert "pip install 'goose-ray[report]'" in done.output
    assert not (folder / "report").exists()


def test_probabilities_of_anisotropic_are_reliable_on_replies_it_was_not_fitted_to(shared_dir: Path) -> None:
    """The prior knows prompts of other kinds; a benchmark's first replies meet it as it comes."""
    plan = ReplayPlan(benchmarks=tuple(read_benchmarks([shared_dir / "data" / "recordings"], seed=0)))
    statistics = StepStatistics()
    plan.run("anisotropic", 32, statistics)
    found = statistics.reliability()
    assert found is not None
    assert found.num_nodes > 5000
    assert found.ece <= 0.05
    assert found.ece_equal_counts <= 0.05
