"""What is no file of a deployment, or no YAML: it is told without what stands in it."""

import os
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from serve_command import DEPLOYMENTS, printed, serve

from goose_ray.cli.deployment_reading import read_deployment, shipped_deployments
from goose_ray.cli.main import main


def refused(folder: Path, text: str) -> Result:
    """What `goose serve` says to a file with this text, which it does not take."""
    file = folder / "other.yaml"
    file.write_text(text)
    result = serve("--config", file, "--print-config")
    assert result.exit_code == 1
    return result


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no list of `applications`"),
        ("- 1", "it has no list of `applications`"),
        ("applications: 1", "it has no list of `applications`"),
        ("applications: [1]", "its `applications` have 0 of them"),
        ("a:\n\tb", "line 2, column 1: found character '\\t'"),
        ("a: 2020-13-45", "line 1, column 4: the value is no valid timestamp"),
        ('a: !!bool "x"', "line 1, column 4: the value is no valid bool"),
        ("a: &a {x: *a}", "Circular reference detected"),
        (2000 * "[", "nested too deeply"),
        ("a: b\n- c", "line 2, column 1: expected <block end>, but found '-'"),
        ("http:\n  port: 8000\n  port: 9000", "line 3, column 3: the key 'port' is there already, in line 2"),
        ("{a: 1, b: {a: 2}, 'a': 3}", "line 1, column 19: the key 'a' is there already, in line 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_its_own_words(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(tmp_path, text).stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("token: *hunter2", "line 1, column 8: found undefined alias\n"),
        ("a: &hunter2 1\nb: &hunter2 2\n", "line 2, column 4: found duplicate anchor\n"),
        ("x: !hunter2 y", "line 1, column 4: could not determine a constructor for the tag\n"),
        ("x: !!hunter2 y", "could not determine a constructor for the tag\n"),
        ("x: !!python/object/apply:os.system [hunter2]", "could not determine a constructor for the tag\n"),
        ("x: !%27%22hunter2 y", "could not determine a constructor for the tag\n"),
        ("x: !<%27%22hunter2> y", "could not determine a constructor for the tag\n"),
        ("x: !hunter2!y z", "found undefined tag handle\n"),
        ("%TAG !hunter2! a\n%TAG !hunter2! b\n---\n", "duplicate tag handle\n"),
        ("x: !!int hunter2", "line 1, column 4: the value is no valid int\n"),
        ("x: !!float hunter2", "the value is no valid float\n"),
        ("x: !!bool hunter2", "the value is no valid bool\n"),
        ("x: !!timestamp hunter2", "the value is no valid timestamp\n"),
        ("x: !!int {=: hunter2}", "the value is no valid int\n"),
        ("x: !!timestamp {=: hunter2}", "the value is no valid timestamp\n"),
    ],
)
def test_the_text_of_a_file_is_not_shown(tmp_path: Path, text: str, problem: str) -> None:
    result = refused(tmp_path, text)
    assert result.stderr.endswith(problem)
    assert "hunter2" not in result.output


def test_a_mapping_may_overrule_what_it_merges(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    file.write_text(
        "a: &a {x: 1, y: 1}\nouter: {inner: &b {<<: *a, x: 2}}\nc: &c {<<: *b, x: 3}\nd: {<<: [*a, *c], y: 4}\n"
    )
    assert read_deployment(file) == yaml.safe_load(file.read_text())
    assert read_deployment(file)["d"]["y"] == 4


@pytest.mark.parametrize("command", ["serve", "doctor"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "config: must be a file, or a deployment that comes along ("),
        ("~no-such-user/x.yaml", "'~no-such-user/x.yaml' cannot be looked at (Could not determine home directory.)"),
        (300 * "x", "cannot be looked at (File name too long)"),
        ("circle", "'circle' cannot be looked at (Too many levels of symbolic links)"),
        ("file/x.yaml", "'file/x.yaml' cannot be looked at (Not a directory)"),
        ("nothing", "there is no file 'nothing'"),
        ("folder", "'folder' is no regular file"),
        ("pipe", "'pipe' is no regular file"),
        ("/dev/zero", "'/dev/zero' is no regular file"),
    ],
)
def test_what_is_no_file_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    Path("file").touch()
    Path("folder").mkdir()
    os.mkfifo("pipe")
    result = CliRunner().invoke(main, [command, "--config", name])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "smollm2-135m-instruct", "downloaded", "a b.gguf"])
def test_a_model_in_a_deployment_s_place_is_told_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("downloaded").mkdir()
    Path("downloaded/config.json").touch()
    result = CliRunner().invoke(main, ["plan", name, "--gpu", "H100-80GB"])
    assert result.exit_code == 1
    typed = f"'{name}'" if " " in name else name
    command = f"goose serve {typed} --print-config > deployment.yaml"
    assert f"a model? `{command}` writes a deployment of it" in result.stderr


@pytest.mark.parametrize("name", ["deployments/mine.yaml", "mine/other.yml", "/tmp/nowhere", "nothing"])
def test_what_may_be_no_model_is_not_called_one(name: str) -> None:
    result = CliRunner().invoke(main, ["plan", name, "--gpu", "H100-80GB"])
    assert result.exit_code == 1
    assert "a model?" not in result.stderr


def test_a_folder_does_not_hide_a_deployment_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("goose").mkdir()
    assert printed("--config", "goose") == printed()


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("applications: [{name: x, import_path: other:app}]")
    for named in (other, "no-such-file"):
        result = serve("--config", named, "--print-config")
        assert result.exit_code == 1
        assert str(named) in result.stderr


def test_deployments_come_along_in_a_wheel() -> None:
    """Where the build puts them is where they are looked for."""
    project = tomllib.loads((DEPLOYMENTS.parent / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"deployments": "goose_ray/deployments"}
    assert set(shipped_deployments()) == {path.stem for path in DEPLOYMENTS.glob("*.yaml")}
